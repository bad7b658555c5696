"""Locks, limits and memoization that threads and processes share through a cache.

All of these keep their state in entries of a cache. Give that cache the eviction policy `none`, so that none of the
entries is evicted.
"""

from __future__ import annotations

import functools
import math
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from .constants import ENOVAL
from .keys import args_to_key, full_name

_R = TypeVar("_R")
# How long a thread sleeps before it asks for a lock again, in seconds.
_NAP = 0.001


class _Lock(Protocol):
    def __enter__(self) -> Any: ...
    def __exit__(self, *exception: object) -> Any: ...


class Averager:
    """A running average."""

    def __init__(self, cache: Any, key: Any, expire: float | None = None, tag: Any = None) -> None:
        self._cache = cache
        self._key = key
        self._expire = expire
        self._tag = tag

    def add(self, value: float) -> None:
        """Adds a value, in one transaction."""
        with self._cache.transact(retry=True):
            total, count = self._cache.get(self._key, default=(0.0, 0))
            self._cache.set(self._key, (total + value, count + 1), expire=self._expire, tag=self._tag)

    def get(self) -> float | None:
        """Returns the average, or None if there are no values."""
        return _average(self._cache.get(self._key, default=(0.0, 0), retry=True))

    def pop(self) -> float | None:
        """Returns the average, or None if there are no values, and resets it."""
        return _average(self._cache.pop(self._key, default=(0.0, 0), retry=True))


def _average(state: tuple[float, int]) -> float | None:
    total, count = state
    return total / count if count else None


class Lock:
    """A lock. A process that is killed keeps it until `expire`, in seconds: give a time if processes may be killed."""

    def __init__(self, cache: Any, key: Any, expire: float | None = None, tag: Any = None) -> None:
        self._cache = cache
        self._key = key
        self._expire = expire
        self._tag = tag

    def acquire(self) -> None:
        """Waits for the lock, and takes it. Asks each millisecond."""
        while not self._cache.add(self._key, None, expire=self._expire, tag=self._tag, retry=True):
            time.sleep(_NAP)

    def release(self) -> None:
        """Frees the lock, whichever thread has it."""
        self._cache.delete(self._key, retry=True)

    def locked(self) -> bool:
        """Whether a thread has the lock."""
        return self._key in self._cache

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()


class RLock:
    """A lock that its thread can take again. See `Lock` for killed processes."""

    def __init__(self, cache: Any, key: Any, expire: float | None = None, tag: Any = None) -> None:
        self._cache = cache
        self._key = key
        self._expire = expire
        self._tag = tag

    def acquire(self) -> None:
        """Waits for the lock, and takes it. Asks each millisecond."""
        me = _this_thread()
        while True:
            with self._cache.transact(retry=True):
                holder, depth = self._cache.get(self._key, default=(None, 0))
                if holder == me or depth == 0:
                    self._cache.set(self._key, (me, depth + 1), expire=self._expire, tag=self._tag)
                    return
            time.sleep(_NAP)

    def release(self) -> None:
        """Takes back one `acquire`. Raises `AssertionError` if the thread does not have the lock."""
        with self._cache.transact(retry=True):
            holder, depth = self._cache.get(self._key, default=(None, 0))
            if holder != _this_thread() or depth == 0:
                raise AssertionError("cannot release a lock that this thread does not have")
            self._cache.set(self._key, (holder, depth - 1), expire=self._expire, tag=self._tag)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()


def _this_thread() -> str:
    return f"{os.getpid()}-{threading.get_ident()}"


class BoundedSemaphore:
    """A semaphore that up to `value` threads have. See `Lock` for killed processes."""

    def __init__(
        self, cache: Any, key: Any, value: int = 1, expire: float | None = None, tag: Any = None
    ) -> None:
        self._cache = cache
        self._key = key
        self._value = value
        self._expire = expire
        self._tag = tag

    def acquire(self) -> None:
        """Waits until it is free, and takes it. Asks each millisecond."""
        while True:
            with self._cache.transact(retry=True):
                free = self._cache.get(self._key, default=self._value)
                if free > 0:
                    self._cache.set(self._key, free - 1, expire=self._expire, tag=self._tag)
                    return
            time.sleep(_NAP)

    def release(self) -> None:
        """Gives it back. Raises `AssertionError` if it is entirely free."""
        with self._cache.transact(retry=True):
            free = self._cache.get(self._key, default=self._value)
            if free >= self._value:
                raise AssertionError("cannot release a semaphore that is not acquired")
            self._cache.set(self._key, free + 1, expire=self._expire, tag=self._tag)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()


def throttle(
    cache: Any,
    count: int,
    seconds: float,
    name: str | None = None,
    expire: float | None = None,
    tag: Any = None,
    time_func: Callable[[], float] = time.time,
    sleep_func: Callable[[float], None] = time.sleep,
) -> Callable[[Callable[..., _R]], Callable[..., _R]]:
    """A decorator that delays calls so that all processes together make at most `count` in `seconds`.

    A bucket of `count` tokens gets `count / seconds` new ones a second; a call takes one, or sleeps until there is one.
    """
    rate = count / float(seconds)

    def take(key: Any) -> float:
        """Takes a token, or returns after how many seconds there is one."""
        with cache.transact(retry=True):
            now = time_func()
            then, tokens = cache.get(key, default=(now, float(count)))
            tokens = min(float(count), tokens + (now - then) * rate)
            if tokens < 1:
                return (1 - tokens) / rate  # type: ignore[no-any-return]
            cache.set(key, (now, tokens - 1), expire=expire, tag=tag)
            return 0.0

    def decorator(function: Callable[..., _R]) -> Callable[..., _R]:
        key = full_name(function) if name is None else name
        cache.set(key, (time_func(), float(count)), expire=expire, tag=tag, retry=True)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> _R:
            while delay := take(key):
                sleep_func(delay)
            return function(*args, **kwargs)

        return wrapper

    return decorator


def barrier(
    cache: Any,
    lock_factory: Callable[..., _Lock],
    name: str | None = None,
    expire: float | None = None,
    tag: Any = None,
) -> Callable[[Callable[..., _R]], Callable[..., _R]]:
    """A decorator that calls the function with a lock: a `Lock`, `RLock` or `BoundedSemaphore`."""

    def decorator(function: Callable[..., _R]) -> Callable[..., _R]:
        lock = lock_factory(cache, full_name(function) if name is None else name, expire=expire, tag=tag)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> _R:
            with lock:
                return function(*args, **kwargs)

        return wrapper

    return decorator


def memoize_stampede(
    cache: Any,
    expire: float,
    name: str | None = None,
    typed: bool = False,
    tag: Any = None,
    beta: float = 1,
    ignore: Any = (),
) -> Callable[[Callable[..., _R]], Callable[..., _R]]:
    """A decorator that stores what a function returns, and recomputes it in a thread shortly before it expires.

    A result is recomputed early with a chance that grows with the time that it takes and towards its expiry, so that
    not all processes recompute it at the same moment (Vattani, Chierichetti and Lowenstein, VLDB 2015). `beta` above
    1 recomputes earlier. One thread of all processes recomputes a result at a time. See `Cache.memoize` for the rest.
    """

    def decorator(function: Callable[..., _R]) -> Callable[..., _R]:
        base = (full_name(function),) if name is None else (name,)

        def cache_key(*args: Any, **kwargs: Any) -> Any:
            return args_to_key(base, args, kwargs, typed, ignore)

        def compute(key: Any, args: Any, kwargs: Any) -> _R:
            begin = time.time()
            result = function(*args, **kwargs)
            cache.set(key, (result, time.time() - begin), expire=expire, tag=tag, retry=True)
            return result

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> _R:
            key = cache_key(*args, **kwargs)
            pair, expires = cache.get(key, default=ENOVAL, expire_time=True, retry=True)
            if pair is ENOVAL:
                return compute(key, args, kwargs)
            result, took = pair
            early = -took * beta * math.log(1.0 - random.random())
            if time.time() + early >= expires and cache.add((*key, "early"), None, expire=took, retry=True):
                threading.Thread(target=compute, args=(key, args, kwargs), daemon=True).start()
            return result  # type: ignore[no-any-return]

        wrapper.__cache_key__ = cache_key  # type: ignore[attr-defined]
        return wrapper

    return decorator
