"""Operations of a cache on one key."""

from __future__ import annotations

import contextlib
import errno
import struct
import time
from typing import Any

from .._latchwork import _CACHE_HEAD, _cache_add, _cache_delete, _cache_insert, _cache_set
from .base import ALL, BUSY
from .constants import ENOVAL, Timeout
from .many import Many
from .record import (
    EXPIRE,
    HAS_TAG,
    HEAD,
    INLINE,
    LONG,
    NEVER,
    UNIT,
    Entry,
    damaged,
    units_of,
    unpack,
)
from .space import FRESH_FOR, HITS, MISSES, Space
from .work import Work

# The compiled part reads and writes headers as well.
assert HEAD.size == _CACHE_HEAD


class Entries(Many):
    """Reads and writes single entries."""

    def set(
        self, key: Any, value: Any, expire: float | None = None, read: bool = False, tag: Any = None, retry: bool = False
    ) -> bool:
        """Stores a value. `expire` is in seconds from now; None is never. Returns True.

        If `read` is true, `value` is a file object in binary mode, whose rest is the value. Raises `Timeout`.
        Writes 1 or 2 records for a key that exists, 5 to 9 for a new one; then culls: see `cull_limit`.
        """
        now = time.time()
        at = NEVER if expire is None else now + expire
        db_key, long_key = self._key(key)
        body = self._body(value, read, key)

        if tag is None and not self._blocks and self._overwrite(db_key, body, now, at):
            # Neither the volume nor the first expiry has changed.
            space = self._opened()
            if space.next_expiry >= now and space.expiry_known_at <= now < space.expiry_known_at + FRESH_FOR:
                return True
        elif tag is not None or long_key is not None or self._blocks or not self._insert(db_key, body, now, at):
            ranked = self._policy != 0
            self._change(lambda work: work.store(db_key, long_key, body, now, at, tag, ranked=ranked), retry)
        self._cull_some(now, at)
        return True

    def _overwrite(self, db_key: Any, body: bytes, now: float, at: float) -> bool:
        """Stores a value again where the entry stays in its places and counts for the same: one record that is the
        commit as well. Returns False, and has done nothing, if it is not that case."""
        if len(body) > INLINE:
            return False
        entries, how = self._opened().entries, (now, at, units_of(db_key, len(body)), self._timeout)
        try:
            return _cache_set(entries, db_key, body, how)
        except BUSY:
            return False

    def _insert(self, db_key: Any, body: bytes, now: float, at: float) -> bool:
        """Stores an entry without tag and long body that is new, or that stays in its places. Returns False, and has
        done nothing, if it is not that case."""
        if len(body) > INLINE:
            return False
        space, units = self._opened(), units_of(db_key, len(body))
        where = (space.next_row(now), self._policy != 0, space.stripe())
        try:
            more = _cache_insert(space.plain, db_key, body, (now, at, units, self._timeout), where)
        except BUSY:
            return False
        if more is None:
            return False
        space.volume += more * UNIT
        return True

    def __setitem__(self, key: Any, value: Any) -> None:
        self.set(key, value, retry=True)

    def add(
        self, key: Any, value: Any, expire: float | None = None, read: bool = False, tag: Any = None, retry: bool = False
    ) -> bool:
        """Stores a value if the key has none, or an expired one. Returns whether it did. Costs: as `set`."""
        now = time.time()
        at = NEVER if expire is None else now + expire
        db_key, long_key = self._key(key)
        body = self._body(value, read, key)
        ranked = self._policy != 0

        def run(work: Work) -> bool:
            entry = work.find(db_key)
            if entry is None:
                work.insert(db_key, long_key, body, now, at, tag, ranked=ranked)
            elif entry.expire > now:
                return False
            else:
                work.replace(db_key, entry, body=body, expire=at, tag=tag, used=now, count=0)
            return True

        added = self._change(run, retry)
        if added:
            self._cull_some(now, at)
        return added

    def touch(self, key: Any, expire: float | None = None, retry: bool = False) -> bool:
        """Changes when a key expires, in seconds from now. Returns False if there is none. 1 to 3 records."""
        now = time.time()
        at = NEVER if expire is None else now + expire
        db_key, _ = self._key(key)

        def run(work: Work) -> bool:
            entry = work.find(db_key)
            if entry is None or entry.expire <= now:
                return False
            work.replace(db_key, entry, expire=at)
            return True

        done = self._change(run, retry)
        self._opened().next_expiry = min(self._opened().next_expiry, at)
        return done

    def incr(self, key: Any, delta: Any = 1, default: Any = 0, retry: bool = False) -> Any:
        """Adds `delta` to a number, and returns the sum. A key that does not exist counts as `default`, and raises
        `KeyError` if that is None. One transaction of one record."""
        now = time.time()
        db_key, long_key = self._key(key)
        if self._block() is None:
            added = self._add(db_key, delta, now)
            if added is not None:
                return added
        ranked = self._policy != 0
        on_get = self._on_get

        def run(work: Work) -> Any:
            entry = work.find(db_key)
            if entry is None or entry.expire <= now:
                if default is None:
                    raise KeyError(key)
                value = default + delta
                body = self._body(value, False, key)
                if entry is None:
                    work.insert(db_key, long_key, body, now, ranked=ranked)
                else:
                    work.replace(db_key, entry, body=body, expire=NEVER, tag=None, used=now, count=0)
                return value
            value = self._value(work.body(entry)) + delta
            count = entry.reads + 1 if on_get == "count" else None
            work.replace(db_key, entry, body=self._body(value, False, key), used=now, count=count)
            return value

        return self._change(run, retry)

    def _add(self, db_key: Any, delta: Any, now: float) -> int | None:
        """Adds to an integer whose entry keeps its places in the indexes: one record, which is also the commit.
        In all other cases changes nothing and returns None."""
        if type(delta) is not int or not -ALL <= delta < ALL:
            return None
        how = (now, self._on_get == "count", self._timeout)
        try:
            return _cache_add(self._opened().entries, db_key, delta, how)
        except BUSY:
            return None

    def decr(self, key: Any, delta: Any = 1, default: Any = 0, retry: bool = False) -> Any:
        """Subtracts `delta`: see `incr`."""
        return self.incr(key, -delta, default, retry)

    def get(
        self,
        key: Any,
        default: Any = None,
        read: bool = False,
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any:
        """Returns the value of a key, or `default`; with its expiry and tag, in a tuple, if they are asked for.

        If `read` is true, a value that was stored from a file, or is at least `disk_min_file_size` bytes long, is
        returned as a file object. Reads one record, or two for values of more than 1 KiB, and waits for no lock;
        writes one record with the policies that use reads, and one with statistics.
        """
        db_key, _ = self._key(key)
        if self._usual is self._disk and not (self._blocks or self._notes_reads or expire_time or tag):
            # The usual case: an entry with a short body.
            record = self._opened().entries.get(db_key)
            if record is None:
                return default
            try:
                flags, _, expire = EXPIRE.unpack_from(record)
            except struct.error as error:
                raise damaged(error) from error
            if not flags & (HAS_TAG | LONG) and (expire == NEVER or expire > time.time()):
                return self._value(record[HEAD.size :], read)
        found = self._find(db_key, time.time(), retry)
        if found is not None:
            entry, body = found
            try:
                value = self._value(body, read)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise
            else:
                return with_facts(value, entry, expire_time, tag)
        return with_facts(default, None, expire_time, tag)

    def _find(self, db_key: Any, now: float, retry: bool) -> tuple[Entry, bytes] | None:
        """The entry of a key that has not expired, and its body; notes the read if policy or statistics ask for it."""
        space = self._opened()
        block = self._block()
        if block is not None:
            try:
                entry = block.work.find(db_key)
                body = b"" if entry is None else block.work.body(entry)
            except BUSY as error:
                raise Timeout(str(error)) from error
        else:
            while True:
                record = space.entries.get(db_key)
                entry = None if record is None else unpack(record)
                body = b"" if entry is None else entry.body
                if entry is not None and entry.flags & LONG:
                    found = space.bodies.get(entry.place()[0])
                    if found is None:
                        # It was replaced between the two reads.
                        continue
                    body = found
                break
        if entry is not None and entry.expire <= now:
            entry = None
        if self._notes_reads:
            self._note_read(space, db_key, entry, now, retry)
        return None if entry is None else (entry, body)

    def _note_read(self, space: Space, db_key: Any, entry: Entry | None, now: float, retry: bool) -> None:
        if self.statistics:
            which = space.stripe() + (MISSES if entry is None else HITS)
            self._single(lambda tx: tx.add(space.counts, which, 1), retry)
        if entry is None or self._on_get is None:
            return
        row = entry.row

        def run(work: Work) -> None:
            found = work.find(db_key)
            if found is not None and found.row == row:
                count = found.reads + 1 if self._on_get == "count" else None
                work.replace(db_key, found, used=max(now, found.used), count=count)

        self._change(run, retry)

    def __getitem__(self, key: Any) -> Any:
        value = self.get(key, default=ENOVAL, retry=True)
        if value is ENOVAL:
            raise KeyError(key)
        return value

    def read(self, key: Any, retry: bool = False) -> Any:
        """Returns the value as a file object: see `get`. Raises `KeyError` if the key does not exist."""
        handle = self.get(key, default=ENOVAL, read=True, retry=retry)
        if handle is ENOVAL:
            raise KeyError(key)
        return handle

    def __contains__(self, key: Any) -> bool:
        db_key, _ = self._key(key)
        entries = self._opened().entries
        if self._block() is None:
            record = entries.get(db_key)
        else:
            record = self._single(lambda tx: tx.get_for_update(entries, db_key), retry=True)
        return record is not None and unpack(record).expire > time.time()

    def pop(
        self, key: Any, default: Any = None, expire_time: bool = False, tag: bool = False, retry: bool = False
    ) -> Any:
        """Removes a key, and returns its value, or `default`. Writes 5 to 9 records."""
        now = time.time()
        db_key, _ = self._key(key)

        def run(work: Work) -> tuple[Entry, bytes] | None:
            entry = work.find(db_key)
            if entry is None:
                return None
            body = work.body(entry)
            work.delete(db_key, entry)
            return (entry, body) if entry.expire > now else None

        found = self._change(run, retry)
        if found is not None:
            try:
                return with_facts(self._value(found[1]), found[0], expire_time, tag)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise
        return with_facts(default, None, expire_time, tag)

    def __delitem__(self, key: Any, retry: bool = True) -> None:
        self._delete(key, retry)

    def _delete(self, key: Any, retry: bool) -> None:
        now = time.time()
        db_key, long_key = self._key(key)
        if long_key is None and not self._blocks:
            space = self._opened()
            with contextlib.suppress(*BUSY):
                units = _cache_delete(space.plain, db_key, (now, space.stripe(), self._timeout))
                if units == 0:
                    raise KeyError(key)
                if units is not None:
                    space.volume -= units * UNIT
                    return

        def run(work: Work) -> bool:
            entry = work.find(db_key)
            if entry is None:
                return False
            if entry.expire <= now:
                return False
            work.delete(db_key, entry)
            return True

        if not self._change(run, retry):
            raise KeyError(key)

    def delete(self, key: Any, retry: bool = False) -> bool:
        """Removes a key. Returns whether it existed. Raises `Timeout`. Writes 5 to 9 records."""
        try:
            self._delete(key, retry)
        except KeyError:
            return False
        return True


def with_facts(value: Any, entry: Entry | None, expire_time: bool, tag: bool) -> Any:
    """The value, and what else was asked for."""
    if not expire_time and not tag:
        return value
    parts = [value]
    if expire_time:
        parts.append(None if entry is None or entry.expire == NEVER else entry.expire)
    if tag:
        parts.append(None if entry is None else entry.tag)
    return tuple(parts)
