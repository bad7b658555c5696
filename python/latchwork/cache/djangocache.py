"""A cache backend of Django.

```python
CACHES = {"default": {
    "BACKEND": "latchwork.cache.djangocache.DjangoCache",
    "LOCATION": "/var/tmp/shop-cache",
    "OPTIONS": {"unsafe": True},
}}
```

Django's cached pages and query sets are objects of classes, which need `unsafe`: see `latchwork.cache.Disk`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .core import Cache
from .deque import Deque
from .fanout import FanoutCache
from .index import Index

try:
    from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache  # type: ignore
except ModuleNotFoundError:
    # Tools that read all modules of a package import this one without Django.
    DEFAULT_TIMEOUT, BaseCache = object(), object


class DjangoCache(BaseCache):  # type: ignore[misc]
    """Django's interface on a `FanoutCache`. `SHARDS` and `DATABASE_TIMEOUT` are accepted as by diskcache."""

    def __init__(self, directory: str, params: dict[str, Any]) -> None:
        super().__init__(params)
        options = dict(params.get("OPTIONS", {}))
        shards = params.get("SHARDS", 8)
        timeout = params.get("DATABASE_TIMEOUT", 0.010)
        self._cache = FanoutCache(directory, shards, timeout, **options)

    @property
    def directory(self) -> str:
        """The folder of the cache."""
        return self._cache.directory

    def cache(self, name: str) -> Cache:
        """See `FanoutCache.cache`."""
        return self._cache.cache(name)

    def deque(self, name: str, maxlen: int | None = None) -> Deque:
        """See `FanoutCache.deque`."""
        return self._cache.deque(name, maxlen=maxlen)

    def index(self, name: str) -> Index:
        """See `FanoutCache.index`."""
        return self._cache.index(name)

    def add(
        self,
        key: Any,
        value: Any,
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = True,
    ) -> bool:
        """Stores a value if the key has none. Returns whether it did."""
        key = self.make_and_validate_key(key, version=version)
        return self._cache.add(key, value, self.get_backend_timeout(timeout), read, tag, retry)

    def get(
        self,
        key: Any,
        default: Any = None,
        version: int | None = None,
        read: bool = False,
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any:
        """Returns a value, or the default."""
        key = self.make_and_validate_key(key, version=version)
        return self._cache.get(key, default, read, expire_time, tag, retry)

    def read(self, key: Any, version: int | None = None) -> Any:
        """Returns a value as a file object. Raises `KeyError` if the key does not exist."""
        return self._cache.read(self.make_and_validate_key(key, version=version))

    def set(
        self,
        key: Any,
        value: Any,
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = True,
    ) -> bool:
        """Stores a value. Returns whether it did."""
        key = self.make_and_validate_key(key, version=version)
        return self._cache.set(key, value, self.get_backend_timeout(timeout), read, tag, retry)

    def touch(
        self, key: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None, retry: bool = True
    ) -> bool:
        """Changes when a key expires. Returns whether it exists."""
        key = self.make_and_validate_key(key, version=version)
        return self._cache.touch(key, self.get_backend_timeout(timeout), retry)

    def pop(
        self,
        key: Any,
        default: Any = None,
        version: int | None = None,
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = True,
    ) -> Any:
        """Removes a key, and returns its value, or the default."""
        key = self.make_and_validate_key(key, version=version)
        return self._cache.pop(key, default, expire_time, tag, retry)

    def delete(self, key: Any, version: int | None = None, retry: bool = True) -> bool:
        """Removes a key. Returns whether it existed."""
        return self._cache.delete(self.make_and_validate_key(key, version=version), retry)

    def incr(
        self, key: Any, delta: int = 1, version: int | None = None, default: int | None = None, retry: bool = True
    ) -> Any:
        """Adds to a number. Raises `ValueError` if the key does not exist and there is no default."""
        db_key = self.make_and_validate_key(key, version=version)
        try:
            return self._cache.incr(db_key, delta, default, retry)
        except KeyError:
            raise ValueError(f"Key '{key}' not found") from None

    def decr(
        self, key: Any, delta: int = 1, version: int | None = None, default: int | None = None, retry: bool = True
    ) -> Any:
        """Subtracts from a number: see `incr`."""
        return self.incr(key, -delta, version, default, retry)

    def has_key(self, key: Any, version: int | None = None) -> bool:
        """Whether a key exists."""
        return self.make_and_validate_key(key, version=version) in self._cache

    def expire(self) -> int:
        """Removes expired entries."""
        return self._cache.expire()

    def stats(self, enable: bool = True, reset: bool = False) -> tuple[int, int]:
        """See `Cache.stats`."""
        return self._cache.stats(enable=enable, reset=reset)

    def create_tag_index(self) -> None:
        """See `Cache.create_tag_index`."""
        self._cache.create_tag_index()

    def drop_tag_index(self) -> None:
        """See `Cache.drop_tag_index`."""
        self._cache.drop_tag_index()

    def evict(self, tag: Any) -> int:
        """Removes the entries with a tag."""
        return self._cache.evict(tag)

    def cull(self) -> int:
        """See `Cache.cull`."""
        return self._cache.cull()

    def clear(self) -> int:
        """Removes all entries."""
        return self._cache.clear()

    def close(self, **kwargs: Any) -> None:
        """Does nothing: Django calls it after each request, and the store stays open."""

    def get_backend_timeout(self, timeout: Any = DEFAULT_TIMEOUT) -> float | None:
        """The seconds until an entry expires; negative ones count as expired at once."""
        if timeout is DEFAULT_TIMEOUT:
            timeout = self.default_timeout
        # Zero and less is in the past for the clock that is read after it.
        return None if timeout is None else float(timeout) if timeout > 0 else -1.0

    def memoize(
        self,
        name: str | None = None,
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
        typed: bool = False,
        tag: Any = None,
        ignore: Any = (),
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A decorator that stores what a function returns: see `Cache.memoize`."""
        if callable(name):
            raise TypeError("name cannot be callable: write @cache.memoize()")
        expire = self.get_backend_timeout(timeout)
        versioned: Any = _Versioned(self, version)
        return Cache.memoize(versioned, name, typed, expire, tag, ignore)

    def _memo_key(self, key: tuple[Any, ...], version: int | None) -> tuple[Any, ...]:
        return (self.key_prefix, self.version if version is None else version, *key)


class _Versioned:
    """The calls of a `Cache` that memoization makes, by keys with a prefix and a version."""

    def __init__(self, backend: DjangoCache, version: int | None) -> None:
        self._backend = backend
        self._version = version

    def get(self, key: Any, default: Any, retry: bool) -> Any:
        backend = self._backend
        return backend._cache.get(backend._memo_key(key, self._version), default=default, retry=retry)

    def set(self, key: Any, value: Any, expire: Any, tag: Any, retry: bool) -> None:
        backend = self._backend
        backend._cache.set(backend._memo_key(key, self._version), value, expire, tag=tag, retry=retry)


__all__ = ["DjangoCache"]
