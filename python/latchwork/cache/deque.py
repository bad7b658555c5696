"""A deque in a cache."""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from typing import Any

from .constants import ENOVAL
from .core import Cache


class Deque(MutableSequence[Any]):
    """A sequence with two ends, like `collections.deque`, that threads and processes share.

    Adding and removing at an end is O(log n). An index costs O(distance from the nearer end).
    """

    _cache: Cache
    _maxlen: float

    def __init__(
        self,
        iterable: Iterable[Any] = (),
        directory: Any = None,
        maxlen: float | None = None,
        *,
        unsafe: bool = False,
    ) -> None:
        """Opens the deque in a folder, a temporary one if it is None, and appends the items of an iterable."""
        self._cache = Cache(directory, eviction_policy="none", unsafe=unsafe)
        self._maxlen = float("inf") if maxlen is None else maxlen
        self.extend(iterable)

    @classmethod
    def fromcache(cls, cache: Cache, iterable: Iterable[Any] = (), maxlen: float | None = None) -> Deque:
        """Makes a deque of the queue `None` of a cache. The cache must have the eviction policy `none`."""
        self = cls.__new__(cls)
        self._cache = cache
        self._maxlen = float("inf") if maxlen is None else maxlen
        self.extend(iterable)
        return self

    @property
    def cache(self) -> Cache:
        """The cache that holds the deque."""
        return self._cache

    @property
    def directory(self) -> str:
        """The folder of the deque."""
        return self._cache.directory

    @property
    def maxlen(self) -> float:
        """How many items the deque may have. Items beyond that are removed at the other end."""
        return self._maxlen

    @maxlen.setter
    def maxlen(self, value: float) -> None:
        self._maxlen = value
        with self._cache.transact(retry=True):
            while len(self._cache) > value:
                self._take("front")

    def _at(self, index: int, use: Callable[[Any], Any]) -> Any:
        """Calls a function with the key of the item at an index. Items that others remove at the same time do not count."""
        length = len(self._cache)
        if not -length <= index < length:
            raise IndexError("deque index out of range")
        keys: Iterator[Any] = iter(self._cache.iterkeys(reverse=index < 0))
        for key in itertools.islice(keys, index if index >= 0 else -index - 1, None):
            with contextlib.suppress(KeyError):
                return use(key)
        raise IndexError("deque index out of range")

    def __getitem__(self, index: Any) -> Any:
        return self._at(index, self._cache.__getitem__)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._at(index, lambda key: self._cache.__setitem__(key, value))

    def __delitem__(self, index: Any) -> None:
        self._at(index, self._cache.__delitem__)

    def _compare(self, other: Any, compare: Callable[[Any, Any], bool]) -> Any:
        if not hasattr(other, "__len__") or not hasattr(other, "__getitem__") or isinstance(other, dict):
            return NotImplemented
        return compare(list(self), list(other))

    def __eq__(self, other: object) -> Any:
        return self._compare(other, operator.eq)

    def __ne__(self, other: object) -> Any:
        return self._compare(other, operator.ne)

    def __lt__(self, other: Any) -> Any:
        return self._compare(other, operator.lt)

    def __le__(self, other: Any) -> Any:
        return self._compare(other, operator.le)

    def __gt__(self, other: Any) -> Any:
        return self._compare(other, operator.gt)

    def __ge__(self, other: Any) -> Any:
        return self._compare(other, operator.ge)

    __hash__ = None  # type: ignore[assignment]

    def __iadd__(self, iterable: Iterable[Any]) -> Deque:
        self.extend(iterable)
        return self

    def _items(self, reverse: bool) -> Iterator[Any]:
        for key in self._cache.iterkeys(reverse=reverse):
            with contextlib.suppress(KeyError):
                yield self._cache[key]

    def __iter__(self) -> Iterator[Any]:
        return self._items(False)

    def __reversed__(self) -> Iterator[Any]:
        return self._items(True)

    def __len__(self) -> int:
        return len(self._cache)

    def __getstate__(self) -> Any:
        return self._cache, self._maxlen

    def __setstate__(self, state: Any) -> None:
        self._cache, self._maxlen = state

    def __repr__(self) -> str:
        return f"{type(self).__name__}(directory={self.directory!r})"

    def _add(self, value: Any, side: str) -> None:
        if self._maxlen == float("inf"):
            self._cache.push(value, side=side, retry=True)
            return
        with self._cache.transact(retry=True):
            self._cache.push(value, side=side, retry=True)
            while len(self._cache) > self._maxlen:
                self._take("back" if side == "front" else "front")

    def _take(self, side: str) -> Any:
        _, value = self._cache.pull(default=(None, ENOVAL), side=side, retry=True)
        if value is ENOVAL:
            raise IndexError("pop from an empty deque")
        return value

    def _look(self, side: str) -> Any:
        _, value = self._cache.peek(default=(None, ENOVAL), side=side, retry=True)
        if value is ENOVAL:
            raise IndexError("peek into an empty deque")
        return value

    def append(self, value: Any) -> None:
        """Adds an item at the back."""
        self._add(value, "back")

    def appendleft(self, value: Any) -> None:
        """Adds an item at the front."""
        self._add(value, "front")

    def extend(self, values: Iterable[Any]) -> None:
        """Appends items, each in a transaction of its own."""
        for value in values:
            self.append(value)

    def extendleft(self, values: Iterable[Any]) -> None:
        """Adds items at the front, which reverses them."""
        for value in values:
            self.appendleft(value)

    def peek(self) -> Any:
        """Returns the last item. Raises `IndexError` if there is none."""
        return self._look("back")

    def peekleft(self) -> Any:
        """Returns the first item. Raises `IndexError` if there is none."""
        return self._look("front")

    def pop(self) -> Any:  # type: ignore[override]
        """Removes and returns the last item. Raises `IndexError` if there is none."""
        return self._take("back")

    def popleft(self) -> Any:
        """Removes and returns the first item. Raises `IndexError` if there is none."""
        return self._take("front")

    def insert(self, index: int, value: Any) -> None:
        """Not offered: an item between two others would need a new key for all behind it."""
        raise NotImplementedError("a Deque has no insert")

    def clear(self) -> None:
        """Removes all items."""
        self._cache.clear(retry=True)

    def copy(self) -> Deque:
        """Returns another handle of the same deque."""
        other = type(self).__new__(type(self))
        other.__setstate__((self._cache, self._maxlen))
        return other

    def count(self, value: Any) -> int:
        """Counts the items that are equal to a value. O(n)."""
        return sum(value == item for item in self)

    def remove(self, value: Any) -> None:
        """Removes the first item that is equal to a value. Raises `ValueError` if there is none. O(n)."""
        for key in self._cache.iterkeys():
            with contextlib.suppress(KeyError):
                if self._cache[key] == value:
                    del self._cache[key]
                    return
        raise ValueError("the value is not in the deque")

    def reverse(self) -> None:
        """Reverses the items, in one transaction. O(n)."""
        with self._cache.transact(retry=True):
            items = list(reversed(self))
            self._cache.clear()
            self.extend(items)

    def rotate(self, steps: int = 1) -> None:
        """Moves items from the back to the front, or in the other direction if `steps` is negative; in one
        transaction. O(steps modulo n)."""
        if not isinstance(steps, int):
            raise TypeError(f"steps is an int, not {type(steps).__name__}")
        length = len(self)
        if not length:
            return
        left = steps < 0
        with contextlib.suppress(IndexError), self._cache.transact(retry=True):
            for _ in range(abs(steps) % length):
                if left:
                    self.append(self.popleft())
                else:
                    self.appendleft(self.pop())

    def transact(self) -> contextlib.AbstractContextManager[None]:
        """A block that is one transaction: see `Cache.transact`."""
        return self._cache.transact(retry=True)
