"""The tables of a cache.

| table | key | value |
|---|---|---|
| `entries` | the key of the cache | the entry: see `record` |
| `order` | row | key |
| `expiry` | a time at or before the entry's expiry, row | key |
| `rank` | region, rank, row | key |
| `tags` | tag, row | key |
| `bodies` | number | a body of more than 1 KiB |
| `keys` | SHA-256 of a key that is too long for the store | that key |
| `counts` | stripe * 4 + what | entries, bytes, hits or misses that the processes of a stripe have added |
| `settings` | name | value |
| `locks` | name | a record that is only locked: `alone` |

A process adds to the counts of its own stripe, so counts are no hot records: two processes meet there only if
their numbers are the same modulo 64. A sum reads at most 256 records.
"""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from typing import Any

from .. import Store, Table, open
from .constants import DEFAULT_SETTINGS
from .plain import dumps, loads

STRIPES = 64
COUNT, SIZE, HITS, MISSES = range(4)
# How long a process relies on a sum that others have added to, in seconds.
FRESH_FOR = 0.1
# The store's limit is 1,890 bytes; an index adds a few parts before a key.
LONGEST_KEY = 1700
LONGEST_TAG = 256
# Any key of at most this many bytes or ASCII characters is short enough: a zero byte takes two.
ANY_KEY = LONGEST_KEY // 2


class Space:
    """The tables with one name in one store, and what this process knows about their sums."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        prefix = f"cache/{name}/" if name else "cache/"

        def table(what: str, values: str | None = None) -> Table:
            return store.table(prefix + what, values=values)

        self.entries = table("entries", "bytes")
        self.order = table("order")
        self.expiry = table("expiry")
        self.rank = table("rank")
        self.tags = table("tags")
        self.bodies = table("bodies", "bytes")
        self.keys = table("keys", "bytes")
        self.counts = table("counts", "i64")
        self.settings = table("settings")
        self.locks = table("locks", "bytes")
        # The compiled part gets the tables of an entry without tag and long body.
        self.plain = (self.entries, self.order, self.rank, self.expiry, self.counts)
        self._lock = threading.Lock()
        self._row = 0
        self.volume = 0
        self.summed_at = 0.0
        self.next_expiry = 0.0
        self.expiry_known_at = 0.0
        self.owed = 0

    def next_row(self, now: float) -> int:
        """A number for a new entry, in the order of time for the entries of one process."""
        # The last digits are those of the process, so two processes rarely choose the same number.
        row = int(now * 1e9) // 1024 * 1024 + os.getpid() % 1024
        with self._lock:
            if row <= self._row:
                row = self._row + 1024
            self._row = row
        return row

    def new_number(self) -> int:
        """A random number for a long body."""
        return int.from_bytes(os.urandom(8), "little") >> 1

    def stripe(self) -> int:
        return os.getpid() % STRIPES * 4

    def sums(self) -> list[int]:
        """The numbers of entries, bytes, hits and misses. O(64)."""
        sums = [0, 0, 0, 0]
        for key, value in self.counts.range():
            sums[key % 4] += value
        return sums

    def volume_now(self, limit: int, now: float) -> int:
        """The volume; at most 0.1 s old as to other processes, and exact for this one."""
        if self.volume >= limit or not self.summed_at <= now < self.summed_at + FRESH_FOR:
            self.volume = self.sums()[SIZE]
            self.summed_at = now
        return self.volume


def shorten(key: Any) -> tuple[Any, bytes | None]:
    """Returns a key that the store can hold and, if that is a digest, the bytes to store in `keys`."""
    # A character of a text takes up to 4 bytes, a zero byte 2.
    kind = type(key)
    if kind is str:
        if len(key) <= LONGEST_KEY // 4 or _length(key.encode()) <= LONGEST_KEY:
            return key, None
    elif kind is bytes:
        if len(key) <= LONGEST_KEY // 2 or _length(key) <= LONGEST_KEY:
            return key, None
    elif kind is not tuple or _length(key[0]) <= LONGEST_KEY:
        return key, None
    data = dumps(key)
    digest = hashlib.sha256(data).digest()
    return ("h", digest), data


def lengthen(data: bytes) -> Any:
    """The key that `shorten` made `data` of."""
    return loads(data)


def tag_key(tag: Any) -> Any:
    """Returns the key of a tag in the index of tags: the beginning of a long tag."""
    return tag[:LONGEST_TAG] if type(tag) in (str, bytes) else tag


def _length(data: bytes) -> int:
    return len(data) + data.count(0)


class Home:
    """A store that is open, which all caches of this process in its folder share. It is closed with the last of them."""

    _all: weakref.WeakValueDictionary[tuple[int, int], Home] = weakref.WeakValueDictionary()
    _opening = threading.Lock()

    def __init__(self, directory: str, mode: Any) -> None:
        # While it is open, no other folder has its number.
        folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, folder)
        self.store = open(directory, mode=mode)
        self.spaces: dict[str, Space] = {}

    @classmethod
    def at(cls, directory: str, mode: Any) -> Home:
        """The open store of a folder, which is created. The same folder is the same store, whatever its path."""
        with cls._opening:
            home = cls._all.get(_identity(directory))
            if home is None:
                home = cls(directory, mode)
                cls._all[_identity(directory)] = home
            return home

    def space(self, name: str) -> Space:
        found = self.spaces.get(name)
        if found is None:
            found = self.spaces.setdefault(name, Space(self.store, name))
        return found


def _identity(directory: str) -> tuple[int, int]:
    found = os.stat(directory)
    return found.st_dev, found.st_ino


def _forget_in_child() -> None:
    # A thread of the parent may have held it.
    Home._opening = threading.Lock()
    for home in list(Home._all.values()):
        for space in home.spaces.values():
            space._lock = threading.Lock()
            space._row = 0


os.register_at_fork(after_in_child=_forget_in_child)


def stored_settings(space: Space) -> dict[str, Any]:
    return {**DEFAULT_SETTINGS, **dict(space.settings.items())}
