"""Names that every part of the cache uses."""

from __future__ import annotations

import pickle
from typing import Any


class Constant:
    """A named marker. It is the same object after a copy or a pickle."""

    __slots__ = ("_name",)
    _all: dict[str, Constant] = {}
    _name: str

    def __new__(cls, name: str) -> Constant:
        known = cls._all.get(name)
        if known is None:
            known = cls._all[name] = object.__new__(cls)
            known._name = name
        return known

    def __repr__(self) -> str:
        return self._name

    def __reduce__(self) -> tuple[Any, ...]:
        return Constant, (self._name,)


ENOVAL = Constant("ENOVAL")
"""Marks an argument that was not given, and a value that does not exist."""
UNKNOWN = Constant("UNKNOWN")
"""Marks a key or a value that `Disk.store` is called without."""

MODE_NONE = 0
MODE_RAW = 1
MODE_BINARY = 2
MODE_TEXT = 3
MODE_PICKLE = 4
MODE_SAFE = 5

DEFAULT_SETTINGS: dict[str, Any] = {
    "statistics": 0,
    "tag_index": 0,
    "eviction_policy": "least-recently-stored",
    "size_limit": 2**30,
    "cull_limit": 10,
    "disk_min_file_size": 2**15,
    "disk_pickle_protocol": pickle.HIGHEST_PROTOCOL,
}
"""The settings of a new cache. Settings are stored, and all handles of a cache share them."""

EVICTION_POLICY: dict[str, dict[str, Any]] = {
    "none": {"code": 0, "get": None, "cull": None},
    "least-recently-stored": {"code": 1, "get": None, "cull": "time"},
    "least-recently-used": {"code": 2, "get": "time", "cull": "time"},
    "least-frequently-used": {"code": 3, "get": "count", "cull": "count"},
}
"""For each policy, the value that a read records (`get`) and the value that culling compares (`cull`)."""


class Timeout(Exception):
    """A lock was not free in time, or a `transact` block was chosen to end a deadlock.

    Nothing of the call was written. Methods that remove items in batches pass the number of items
    that they had removed before as the argument.
    """


class UnknownFileWarning(UserWarning):
    """Reported by `Cache.check` of diskcache. This package keeps no files of its own."""


class EmptyDirWarning(UserWarning):
    """Reported by `Cache.check` of diskcache. This package keeps no directories of its own."""
