"""A cache with the interface of diskcache's sharded one."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from .constants import DEFAULT_SETTINGS, ENOVAL, Timeout
from .core import Cache
from .deque import Deque
from .disk import Disk, PickleDisk, directory_of
from .index import Index


class FanoutCache:
    """A `Cache` whose calls return False, None or the default where those of `Cache` raise `Timeout`.

    diskcache divides such a cache into shards, because SQLite has one writer at a time. Processes write to one store
    of this package at the same time, so there is one shard. `shards` divides the size limit as in diskcache: the
    setting `size_limit` is that of one of `shards` equal parts. Caches, deques and indexes by name lie in the same
    store.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        shards: int = 8,
        timeout: float = 0.010,
        disk: type[Disk] = Disk,
        *,
        unsafe: bool = False,
        **settings: Any,
    ) -> None:
        if directory is None:
            directory = tempfile.mkdtemp(prefix="latchwork-cache-")
        if unsafe and disk is Disk:
            disk = PickleDisk
        # The whole limit is that of the one cache.
        settings.setdefault("size_limit", DEFAULT_SETTINGS["size_limit"])
        cache = Cache(directory_of(directory), timeout, disk, **settings)
        self._setup(cache, shards)

    def _setup(self, cache: Cache, parts: int) -> None:
        self._parts = parts
        self._count = 1
        self._shards: Any = (cache,)
        self._hash = cache.disk.hash
        self._named: dict[tuple[str, str], Any] = {}

    @property
    def directory(self) -> str:
        """The folder of the cache."""
        return self._one.directory

    @property
    def _one(self) -> Cache:
        cache: Cache = self._shards[0]
        return cache

    def __getattr__(self, name: str) -> Any:
        if name == "size_limit":
            return self._one.size_limit / self._parts
        if name in DEFAULT_SETTINGS or name in ("timeout", "disk"):
            return getattr(self._one, name)
        raise AttributeError(f"a FanoutCache has no attribute {name!r}")

    def _shard(self, key: Any) -> Any:
        return self._shards[self._hash(key) % self._count] if self._count > 1 else self._shards[0]

    def _quietly(self, otherwise: Any, call: str, key: Any, *args: Any, **kwargs: Any) -> Any:
        """A call that returns something else instead of raising `Timeout`."""
        try:
            return getattr(self._shard(key), call)(key, *args, **kwargs)
        except Timeout:
            return otherwise

    @contextlib.contextmanager
    def transact(self, retry: bool = True) -> Iterator[None]:
        """A block that is one transaction: see `Cache.transact`. `retry` must be true."""
        if not retry:
            raise ValueError("retry must be true")
        with self._one.transact(retry=True):
            yield

    def set(
        self, key: Any, value: Any, expire: float | None = None, read: bool = False, tag: Any = None, retry: bool = False
    ) -> bool:
        """See `Cache.set`. Returns False on a timeout."""
        return bool(self._quietly(False, "set", key, value, expire=expire, read=read, tag=tag, retry=retry))

    def __setitem__(self, key: Any, value: Any) -> None:
        self._shard(key)[key] = value

    def touch(self, key: Any, expire: float | None = None, retry: bool = False) -> bool:
        """See `Cache.touch`. Returns False on a timeout."""
        return bool(self._quietly(False, "touch", key, expire=expire, retry=retry))

    def add(
        self, key: Any, value: Any, expire: float | None = None, read: bool = False, tag: Any = None, retry: bool = False
    ) -> bool:
        """See `Cache.add`. Returns False on a timeout."""
        return bool(self._quietly(False, "add", key, value, expire=expire, read=read, tag=tag, retry=retry))

    def incr(self, key: Any, delta: Any = 1, default: Any = 0, retry: bool = False) -> Any:
        """See `Cache.incr`. Returns None on a timeout."""
        return self._quietly(None, "incr", key, delta, default, retry=retry)

    def decr(self, key: Any, delta: Any = 1, default: Any = 0, retry: bool = False) -> Any:
        """See `Cache.decr`. Returns None on a timeout."""
        return self._quietly(None, "decr", key, delta, default, retry=retry)

    def get(
        self,
        key: Any,
        default: Any = None,
        read: bool = False,
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any:
        """See `Cache.get`. Returns the default on a timeout."""
        return self._quietly(
            default, "get", key, default=default, read=read, expire_time=expire_time, tag=tag, retry=retry
        )

    def __getitem__(self, key: Any) -> Any:
        return self._shard(key)[key]

    def read(self, key: Any) -> Any:
        """See `Cache.read`."""
        handle = self.get(key, default=ENOVAL, read=True, retry=True)
        if handle is ENOVAL:
            raise KeyError(key)
        return handle

    def __contains__(self, key: Any) -> bool:
        return key in self._shard(key)

    def pop(
        self, key: Any, default: Any = None, expire_time: bool = False, tag: bool = False, retry: bool = False
    ) -> Any:
        """See `Cache.pop`. Returns the default on a timeout."""
        return self._quietly(default, "pop", key, default=default, expire_time=expire_time, tag=tag, retry=retry)

    def delete(self, key: Any, retry: bool = False) -> bool:
        """See `Cache.delete`. Returns False on a timeout."""
        return bool(self._quietly(False, "delete", key, retry=retry))

    def __delitem__(self, key: Any) -> None:
        del self._shard(key)[key]

    def check(self, fix: bool = False, retry: bool = False) -> list[warnings.WarningMessage]:
        """See `Cache.check`."""
        return [warning for shard in self._shards for warning in shard.check(fix=fix, retry=retry)]

    def expire(self, retry: bool = False) -> int:
        """See `Cache.expire`. Continues after a timeout."""
        return self._remove("expire", time.time(), retry=retry)

    def create_tag_index(self) -> None:
        """See `Cache.create_tag_index`."""
        for shard in self._shards:
            shard.create_tag_index()

    def drop_tag_index(self) -> None:
        """See `Cache.drop_tag_index`."""
        for shard in self._shards:
            shard.drop_tag_index()

    def evict(self, tag: Any, retry: bool = False) -> int:
        """See `Cache.evict`. Continues after a timeout."""
        return self._remove("evict", tag, retry=retry)

    def cull(self, retry: bool = False) -> int:
        """See `Cache.cull`. Continues after a timeout."""
        return self._remove("cull", retry=retry)

    def clear(self, retry: bool = False) -> int:
        """See `Cache.clear`. Continues after a timeout."""
        return self._remove("clear", retry=retry)

    def _remove(self, name: str, *args: Any, retry: bool) -> int:
        total = 0
        for shard in self._shards:
            while True:
                try:
                    total += getattr(shard, name)(*args, retry=retry)
                    break
                except Timeout as error:
                    total += error.args[0]
        return total

    def stats(self, enable: bool = True, reset: bool = False) -> tuple[int, int]:
        """See `Cache.stats`."""
        results = [shard.stats(enable, reset) for shard in self._shards]
        return sum(hits for hits, _ in results), sum(misses for _, misses in results)

    def volume(self) -> int:
        """See `Cache.volume`."""
        return sum(shard.volume() for shard in self._shards)

    def close(self) -> None:
        """Closes the cache and those by name. The next call opens it again."""
        for shard in self._shards:
            shard.close()
        for (kind, _), named in self._named.items():
            (named if kind == "cache" else named.cache).close()
        self._named.clear()

    def __enter__(self) -> FanoutCache:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> Any:
        return self._one, self._parts

    def __setstate__(self, state: Any) -> None:
        self._setup(*state)

    def __iter__(self) -> Iterator[Any]:
        for shard in self._shards:
            yield from shard

    def __reversed__(self) -> Iterator[Any]:
        for shard in reversed(self._shards):
            yield from reversed(shard)

    def __len__(self) -> int:
        return sum(len(shard) for shard in self._shards)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.directory!r})"

    def reset(self, key: str, value: Any = ENOVAL) -> Any:
        """See `Cache.reset`. `size_limit` is that of one of `shards` parts."""
        parts = self._parts if key == "size_limit" else 1
        stored = value if value is ENOVAL or parts == 1 else value * parts
        result = value
        for shard in self._shards:
            while True:
                try:
                    result = shard.reset(key, stored)
                    break
                except Timeout:
                    continue
        return result if parts == 1 else result / parts

    def cache(self, name: str, timeout: float = 60, disk: type[Disk] | None = None, **settings: Any) -> Cache:
        """Returns the cache with a name in this one's store. It has entries and settings of its own."""
        return self._by_name("cache", name, lambda: self._inner("cache", name, timeout, disk, settings))  # type: ignore[no-any-return]

    def deque(self, name: str, maxlen: int | None = None) -> Deque:
        """Returns the deque with a name in this cache's store."""
        policy = {"eviction_policy": "none"}
        return self._by_name(  # type: ignore[no-any-return]
            "deque", name, lambda: Deque.fromcache(self._inner("deque", name, 60, None, policy), maxlen=maxlen)
        )

    def index(self, name: str) -> Index:
        """Returns the index with a name in this cache's store."""
        policy = {"eviction_policy": "none"}
        return self._by_name(  # type: ignore[no-any-return]
            "index", name, lambda: Index.fromcache(self._inner("index", name, 60, None, policy))
        )

    def _inner(self, kind: str, name: str, timeout: float, disk: type[Disk] | None, settings: dict[str, Any]) -> Cache:
        one = self._one
        return one._named(f"{kind}/{name}", timeout, disk or type(one.disk), settings)

    def _by_name(self, kind: str, name: str, make: Callable[[], Any]) -> Any:
        found = self._named.get((kind, name))
        if found is None:
            found = self._named.setdefault((kind, name), make())
        return found

    memoize = Cache.memoize
