"""A mapping in a cache."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, MutableMapping, ValuesView
from typing import Any

from .constants import ENOVAL
from .core import Cache


class Index(MutableMapping[Any, Any]):
    """A mapping in the order of insertion that threads and processes share. Nothing in it expires or is evicted."""

    _cache: Cache

    def __init__(self, *args: Any, unsafe: bool = False, **kwargs: Any) -> None:
        """`Index(directory, mapping or pairs, key=value, ..)`: opens the index in a folder, a temporary one if it is
        None or not given, and updates it."""
        directory = None
        if args and (args[0] is None or isinstance(args[0], (str, bytes, os.PathLike))):
            directory, *rest = args
            args = tuple(rest)
        self._cache = Cache(directory, eviction_policy="none", unsafe=unsafe)
        self.update(*args, **kwargs)

    @classmethod
    def fromcache(cls, cache: Cache, *args: Any, **kwargs: Any) -> Index:
        """Makes an index of a cache, which must have the eviction policy `none`, and updates it."""
        self = cls.__new__(cls)
        self._cache = cache
        self.update(*args, **kwargs)
        return self

    @property
    def cache(self) -> Cache:
        """The cache that holds the index."""
        return self._cache

    @property
    def directory(self) -> str:
        """The folder of the index."""
        return self._cache.directory

    def __getitem__(self, key: Any) -> Any:
        return self._cache[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._cache[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._cache[key]

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Returns the value of a key, after setting it to `default` if the key does not exist."""
        while True:
            value = self._cache.get(key, default=ENOVAL, retry=True)
            if value is not ENOVAL:
                return value
            if self._cache.add(key, default, retry=True):
                return default

    def peekitem(self, last: bool = True) -> tuple[Any, Any]:
        """Returns the item that was inserted last, or first. Raises `KeyError` if there is none."""
        key, value = self._cache.peekitem(last, retry=True)
        return key, value

    def pop(self, key: Any, default: Any = ENOVAL) -> Any:
        """Removes a key and returns its value, or `default`. Raises `KeyError` if there is neither."""
        value = self._cache.pop(key, default=default, retry=True)
        if value is ENOVAL:
            raise KeyError(key)
        return value

    def popitem(self, last: bool = True) -> tuple[Any, Any]:
        """Removes and returns the item that was inserted last, or first. Raises `KeyError` if there is none."""
        with self._cache.transact(retry=True):
            key, value = self.peekitem(last)
            del self._cache[key]
        return key, value

    def push(self, value: Any, prefix: str | None = None, side: str = "back") -> Any:
        """Adds a value to a queue: see `Cache.push`."""
        return self._cache.push(value, prefix, side, retry=True)

    def pull(self, prefix: str | None = None, default: Any = (None, None), side: str = "front") -> Any:
        """Removes a value from a queue: see `Cache.pull`."""
        return self._cache.pull(prefix, default, side, retry=True)

    def clear(self) -> None:
        """Removes all items."""
        self._cache.clear(retry=True)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._cache)

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self._cache)

    def __len__(self) -> int:
        return len(self._cache)

    def keys(self) -> KeysView[Any]:
        """A view of the keys."""
        return KeysView(self)

    def values(self) -> ValuesView[Any]:
        """A view of the values."""
        return ValuesView(self)

    def items(self) -> ItemsView[Any, Any]:
        """A view of the items."""
        return ItemsView(self)

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> Any:
        return self._cache

    def __setstate__(self, state: Any) -> None:
        self._cache = state

    def __eq__(self, other: object) -> bool:
        """Whether the items are equal; also in the same order if the other one is an `Index`."""
        if not isinstance(other, Mapping) or len(self) != len(other):
            return False
        if isinstance(other, Index):
            return list(self.items()) == list(other.items())
        return all(self[key] == other.get(key, ENOVAL) for key in self)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def memoize(
        self, name: str | None = None, typed: bool = False, ignore: Any = ()
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A decorator that stores what a function returns: see `Cache.memoize`."""
        return self._cache.memoize(name, typed, ignore=ignore)

    def transact(self) -> contextlib.AbstractContextManager[None]:
        """A block that is one transaction: see `Cache.transact`."""
        return self._cache.transact(retry=True)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.directory!r})"
