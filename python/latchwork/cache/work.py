"""Changes of one transaction to the tables of a cache: an entry and its indexes change together."""

from __future__ import annotations

from typing import Any

from .. import Exists, Transaction
from .record import (
    FRESH,
    INLINE,
    LONG,
    NEVER,
    OUTSIDE,
    PLACE,
    TOUCHED,
    Entry,
    unpack,
)
from .space import COUNT, SIZE, Space, tag_key

_SAME = object()
# The code of the only policy that uses the number of reads instead of the time.
LEAST_FREQUENTLY_USED = 3


def rank_of(entry: Entry, policy: int) -> float:
    """Returns the rank of an entry under a policy: the entry with the lowest rank is evicted first."""
    return float(entry.reads) if policy == LEAST_FREQUENTLY_USED else entry.used


class Work:
    """A transaction that changes entries. `finish` must be called before the commit.

    Entries are read for update, so two transactions that change one entry wait for each other instead of ending
    in a deadlock. The counts come last: threads of a process share them.
    """

    __slots__ = ("count", "size", "space", "tx")

    def __init__(self, tx: Transaction, space: Space) -> None:
        self.tx = tx
        self.space = space
        self.count = 0
        self.size = 0

    def alone(self) -> None:
        """Waits until no `transact` block, push or pull of the cache runs, and keeps others from beginning."""
        self.tx.get_for_update(self.space.locks, "alone")

    def find(self, key: Any) -> Entry | None:
        """Locks a key and reads its entry, which may have expired."""
        record = self.tx.get_for_update(self.space.entries, key)
        return None if record is None else unpack(record)

    def body(self, entry: Entry) -> bytes:
        """Reads the body of an entry that `find` has returned."""
        if not entry.flags & LONG:
            return entry.body
        body: bytes = self.tx.get(self.space.bodies, entry.place()[0])
        return body

    def insert(
        self,
        key: Any,
        long_key: bytes | None,
        body: bytes,
        now: float,
        expire: float = NEVER,
        tag: Any = None,
        *,
        ranked: bool = True,
    ) -> Entry:
        """Adds an entry for a key that `find` has found without one. Writes 5 records: the entry, its rows in
        `order` and `rank`, two counts; one more for an expiry, a tag, a long body, and a long key."""
        tx, space = self.tx, self.space
        row = self._new_row(key, now)
        flags, body = self._put_body(body)
        region = FRESH if ranked else OUTSIDE
        entry = Entry(flags, row, expire, now, 0, expire, 0.0, region, 0, tag, body).recounted(key)
        tx.put(space.entries, key, entry.pack())
        if region == FRESH:
            tx.put(space.rank, (FRESH, 0.0, row), key)
        if expire != NEVER:
            tx.put(space.expiry, (expire, row), key)
        if tag is not None:
            tx.put(space.tags, (tag_key(tag), row), key)
        if long_key is not None:
            tx.put(space.keys, key[1], long_key)
        self.count += 1
        self.size += entry.size()
        return entry

    def store(
        self,
        key: Any,
        long_key: bytes | None,
        body: bytes,
        now: float,
        expire: float = NEVER,
        tag: Any = None,
        *,
        ranked: bool = True,
    ) -> None:
        """Stores a value under a key, which may have one."""
        record = self.tx.get_for_update(self.space.entries, key)
        if record is None:
            self.insert(key, long_key, body, now, expire, tag, ranked=ranked)
        else:
            self.replace(key, unpack(record), body=body, expire=expire, tag=tag, used=now, count=0)

    def replace(
        self,
        key: Any,
        entry: Entry,
        *,
        body: bytes | None = None,
        expire: float | None = None,
        tag: Any = _SAME,
        used: float | None = None,
        count: int | None = None,
    ) -> Entry:
        """Changes an entry. Writes one record, one more if it counts for another size, and two where it must move in
        an index: if it is to expire earlier than before, or if its tag changes."""
        tx, space, row = self.tx, self.space, entry.row
        changes: dict[str, Any] = {}
        if body is not None:
            if entry.flags & LONG:
                tx.remove(space.bodies, entry.place()[0])
            flags, changes["body"] = self._put_body(body)
            changes["flags"] = entry.flags & ~LONG | flags
        if expire is not None and expire != entry.expire:
            changes["expire"] = expire
            if expire < entry.indexed:
                if entry.indexed != NEVER:
                    tx.remove(space.expiry, (entry.indexed, row))
                tx.put(space.expiry, (expire, row), key)
                changes["indexed"] = expire
        if tag is not _SAME and (type(tag) is not type(entry.tag) or tag != entry.tag):
            if entry.tag is not None:
                tx.remove(space.tags, (tag_key(entry.tag), row))
            if tag is not None:
                tx.put(space.tags, (tag_key(tag), row), key)
            changes["tag"] = tag
        if used is not None:
            changes["used"] = used
        if count is not None:
            changes["reads"] = count
        if used is not None or count is not None:
            changes["flags"] = changes.get("flags", entry.flags) | TOUCHED
        changed = entry._replace(**changes)
        if body is not None:
            changed = changed.recounted(key)
            self.size += changed.size() - entry.size()
        if changed.region not in (FRESH, OUTSIDE) and changed.rank > rank_of(changed, changed.region):
            # Its place would no longer be a lower bound.
            changed = self.move_rank(key, changed, FRESH, 0.0)
        else:
            tx.put(space.entries, key, changed.pack())
        return changed

    def move_rank(self, key: Any, entry: Entry, region: int, rank: float) -> Entry:
        """Gives an entry another place in the eviction index. 3 records."""
        tx, space = self.tx, self.space
        if entry.region != OUTSIDE:
            tx.remove(space.rank, (entry.region, entry.rank, entry.row))
        if region != OUTSIDE:
            tx.put(space.rank, (region, rank, entry.row), key)
        moved = entry._replace(region=region, rank=rank)
        tx.put(space.entries, key, moved.pack())
        return moved

    def move_expiry(self, key: Any, entry: Entry) -> Entry:
        """Gives an entry the place in the expiry index that its time says. 2 or 3 records."""
        tx, space = self.tx, self.space
        tx.remove(space.expiry, (entry.indexed, entry.row))
        if entry.expire != NEVER:
            tx.put(space.expiry, (entry.expire, entry.row), key)
        moved = entry._replace(indexed=entry.expire)
        tx.put(space.entries, key, moved.pack())
        return moved

    def delete(self, key: Any, entry: Entry) -> None:
        """Removes an entry and all that belongs to it. As many records as `insert`."""
        tx, space, row = self.tx, self.space, entry.row
        tx.remove(space.entries, key)
        tx.remove(space.order, row)
        if entry.region != OUTSIDE:
            tx.remove(space.rank, (entry.region, entry.rank, row))
        if entry.indexed != NEVER:
            tx.remove(space.expiry, (entry.indexed, row))
        if entry.tag is not None:
            tx.remove(space.tags, (tag_key(entry.tag), row))
        if entry.flags & LONG:
            tx.remove(space.bodies, entry.place()[0])
        if type(key) is tuple and len(key) == 2:
            tx.remove(space.keys, key[1])
        self.count -= 1
        self.size -= entry.size()

    def finish(self) -> None:
        """Adds what has changed to the counts of this process."""
        stripe = self.space.stripe()
        if self.count:
            self.tx.add(self.space.counts, stripe + COUNT, self.count)
        if self.size:
            self.tx.add(self.space.counts, stripe + SIZE, self.size)

    def _new_row(self, key: Any, now: float) -> int:
        """Puts a key at the end of the order."""
        order = self.tx[self.space.order]
        while True:
            row = self.space.next_row(now)
            try:
                order.insert(row, key)
            except Exists:
                # A process with the same number in another container had the same microsecond.
                continue
            return row

    def _put_body(self, body: bytes) -> tuple[int, bytes]:
        if len(body) <= INLINE:
            return 0, body
        number = self.space.new_number()
        self.tx.put(self.space.bodies, number, body)
        return LONG, PLACE.pack(number, len(body))
