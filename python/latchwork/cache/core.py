"""The cache."""

from __future__ import annotations

import errno
import functools
import time
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from . import checking, queue
from .constants import ENOVAL, UNKNOWN
from .disk import Disk, JSONDisk
from .entries import Entries, with_facts
from .keys import args_to_key, full_name
from .record import LONG, NEVER, unpack
from .work import Work

_R = TypeVar("_R")

__all__ = ["ENOVAL", "UNKNOWN", "Cache", "Disk", "JSONDisk"]


class Cache(Entries):
    """A cache that any number of threads and processes share. It lies in a folder, and survives all of them.

    Each call is one transaction: it happens as a whole or not at all, also if the process is killed in the middle of
    it. A handle may be used by any thread, after a fork, and pickled.

    Keys are None, bool, int, float, str, bytes, or tuples and other plain data; values are plain data: see `Disk`.
    Other objects need `unsafe=True`, which allows pickle.
    """

    def push(
        self,
        value: Any,
        prefix: str | None = None,
        side: str = "back",
        expire: float | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = False,
    ) -> Any:
        """Adds a value at one side of a queue, and returns the key that it got.

        The keys of the queue `None` are the integers from 1 to 999,999,999,999,998, beginning in the middle; those of
        a queue with a prefix are the texts of prefix, hyphen and 15 digits. O(log n); records: as `set`.
        """
        now = time.time()
        at = NEVER if expire is None else now + expire
        body = self._body(value, read)
        key = self._change(lambda work: queue.push(self, work, prefix, side, body, now, at, tag), retry)
        self._cull_some(now, at)
        return key

    def pull(
        self,
        prefix: str | None = None,
        default: Any = (None, None),
        side: str = "front",
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any:
        """Removes the value at one side of a queue, and returns key and value, or `default` if it is empty.

        Each value is pulled once, also if processes are killed: a pull that is killed before its commit leaves the
        value where it was. O(log n), and expired values on the way are removed.
        """
        now = time.time()
        found = self._change(lambda work: queue.pull(self, work, prefix, side, now), retry)
        if found is not None:
            key, entry, body = found
            try:
                return with_facts((key, self._value(body)), entry, expire_time, tag)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise
        return with_facts(default, None, expire_time, tag)

    def peek(
        self,
        prefix: str | None = None,
        default: Any = (None, None),
        side: str = "front",
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any:
        """Returns key and value at one side of a queue, or `default` if it is empty. Expired values are removed."""
        found = self._look(lambda: queue.ends(self, prefix, side), expire_time, tag, retry)
        return with_facts(default, None, expire_time, tag) if found is ENOVAL else found

    def peekitem(self, last: bool = True, expire_time: bool = False, tag: bool = False, retry: bool = False) -> Any:
        """Returns key and value of the entry that was inserted last, or first. Raises `KeyError` if there is none.

        O(log n). Expired entries on the way are removed.
        """
        found = self._look(lambda: queue.inserted(self, last), expire_time, tag, retry)
        if found is ENOVAL:
            raise KeyError("the cache is empty")
        return found

    def _look(self, first: Callable[[], list[Any]], expire_time: bool, tag: bool, retry: bool) -> Any:
        """Key and value of the entry that `first` finds, with what else is asked for; ENOVAL if it finds none."""
        space = self._opened()
        while True:
            now = time.time()
            keys = first()
            if not keys:
                return ENOVAL
            db_key = keys[0]
            record = self._single(lambda tx: tx.get(space.entries, db_key), retry)
            if record is None:
                continue
            entry = unpack(record)
            if entry.expire <= now:
                self._change(lambda work: _remove_if(work, db_key, entry.row, now), retry)
                continue
            body = entry.body
            if entry.flags & LONG:
                body = self._single(lambda tx: tx.get(space.bodies, entry.place()[0]), retry)
                if body is None:
                    continue
            try:
                return with_facts((self._key_of(db_key, space), self._value(body)), entry, expire_time, tag)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise

    def check(self, fix: bool = False, retry: bool = False) -> list[warnings.WarningMessage]:
        """Compares entries, indexes and counts, and returns a warning for each that does not agree. O(entries).

        `fix` repairs what it finds, in one transaction.
        """
        return checking.check(self, fix, retry)

    def create_tag_index(self) -> None:
        """Sets `tag_index`. Tags are always indexed."""
        self.reset("tag_index", 1)

    def drop_tag_index(self) -> None:
        """Clears `tag_index`. Tags are always indexed."""
        self.reset("tag_index", 0)

    def memoize(
        self,
        name: str | None = None,
        typed: bool = False,
        expire: float | None = None,
        tag: Any = None,
        ignore: Any = (),
    ) -> Callable[[Callable[..., _R]], Callable[..., _R]]:
        """A decorator that stores what a function returns, by its arguments.

        Arguments and results must be plain data unless the cache is `unsafe`. `name` is part of the key, and the full
        name of the function if it is None. `typed` makes 1 and 1.0 different arguments. `ignore` has positions and
        names of arguments that are not part of the key. The decorated function has `__cache_key__`, which returns
        the key for given arguments.
        """
        if callable(name):
            raise TypeError("name cannot be callable: write @cache.memoize()")

        def decorator(function: Callable[..., _R]) -> Callable[..., _R]:
            base = (full_name(function),) if name is None else (name,)

            def cache_key(*args: Any, **kwargs: Any) -> Any:
                return args_to_key(base, args, kwargs, typed, ignore)

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> _R:
                key = cache_key(*args, **kwargs)
                result = self.get(key, default=ENOVAL, retry=True)
                if result is ENOVAL:
                    result = function(*args, **kwargs)
                    if expire is None or expire > 0:
                        self.set(key, result, expire, tag=tag, retry=True)
                return result  # type: ignore[no-any-return]

            wrapper.__cache_key__ = cache_key  # type: ignore[attr-defined]
            return wrapper

        return decorator


def _remove_if(work: Work, key: Any, row: int, now: float) -> None:
    entry = work.find(key)
    if entry is not None and entry.row == row and entry.expire <= now:
        work.delete(key, entry)
