"""Operations on all entries of a cache: checks, repairs, and the start rows of removal by batches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .constants import ENOVAL
from .record import FRESH, LONG, NEVER, OUTSIDE, Entry, unpack
from .space import COUNT, SIZE, Space, tag_key
from .work import Work

if TYPE_CHECKING:
    from .base import Base

_LAST_ROW = 2**63 - 1


def inserted_after(work: Work, row: int, limit: int) -> list[tuple[int, Any]]:
    """The entries that were inserted after a row: row and key."""
    return list(work.tx[work.space.order].range(row + 1, None, limit=limit))


def tagged_after(tag: Any) -> Callable[[Work, int, int], list[tuple[int, Any]]]:
    """The entries with a tag after a row; with those whose tags share the beginning of a long one."""
    first = tag_key(tag)

    def rows(work: Work, row: int, limit: int) -> list[tuple[int, Any]]:
        tags = work.tx[work.space.tags]
        return [(key[1], value) for key, value in tags.range((first, row + 1), (first, _LAST_ROW), limit=limit)]

    return rows


def rank_all(cache: Base) -> None:
    """Puts all entries that are not in the eviction index into it: when a cache gets a policy."""

    def rank(work: Work) -> int:
        rows = inserted_after(work, last, 100)
        for row, key in rows:
            entry = work.find(key)
            if entry is not None and entry.row == row and entry.region == OUTSIDE:
                work.move_rank(key, entry, FRESH, 0.0)
        return rows[-1][0] if rows else _LAST_ROW

    last = -1
    while last != _LAST_ROW:
        last = cache._batch(rank, True, 0)


def check(cache: Base, fix: bool, retry: bool) -> list[warnings.WarningMessage]:
    """Compares the tables of a cache. With `fix`, in a transaction that repairs them."""
    space = cache._opened()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        if fix:
            with cache._transact(retry) as work:
                _compare(space, work.tx)
                if found:
                    _repair(work)
        else:
            with space.store.snapshot() as snapshot:
                _compare(space, snapshot)
    return found


def _compare(space: Space, view: Any) -> None:
    """Warns of all that does not agree. O(entries), in memory of O(1)."""
    rows = {"order": 0, "expiry": 0, "rank": 0, "tags": 0, "bodies": 0, "keys": 0}
    count = size = 0
    for key, record in view[space.entries].range():
        try:
            entry = unpack(record)
        except Exception as error:
            warnings.warn(f"the entry of key {key!r} cannot be read: {error}", stacklevel=4)
            continue
        count += 1
        size += entry.size()
        for what, at, expected in _rows_of(key, entry):
            rows[what] += 1
            value = view[getattr(space, what)].get(at, ENOVAL)
            if value is ENOVAL or what not in ("bodies", "keys") and value != expected:
                warnings.warn(f"the entry of key {key!r} has no row {at!r} in table {what}", stacklevel=4)
            elif what == "bodies" and len(value) != expected:
                warnings.warn(f"the body of key {key!r} has {len(value)} bytes, not {expected}", stacklevel=4)
        if entry.recounted(key) is not entry:
            warnings.warn(f"the entry of key {key!r} counts for {entry.size()} bytes, which is not its size", stacklevel=4)
        if entry.indexed > entry.expire:
            warnings.warn(f"the entry of key {key!r} is behind its expiry in the index", stacklevel=4)
    for what, expected in rows.items():
        there = view[getattr(space, what)].count()
        if there != expected:
            warnings.warn(f"table {what} has {there} rows, not {expected}", stacklevel=4)
    sums = [0, 0, 0, 0]
    for key, value in view[space.counts].range():
        sums[key % 4] += value
    if sums[COUNT] != count:
        warnings.warn(f"the count says {sums[COUNT]} entries, and there are {count}", stacklevel=4)
    if sums[SIZE] != size:
        warnings.warn(f"the volume says {sums[SIZE]} bytes, and the entries have {size}", stacklevel=4)


def _rows_of(key: Any, entry: Entry) -> Iterator[tuple[str, Any, Any]]:
    """The rows in other tables that belong to an entry: table, key, and value, or its length."""
    yield "order", entry.row, key
    if entry.region != OUTSIDE:
        yield "rank", (entry.region, entry.rank, entry.row), key
    if entry.indexed != NEVER:
        yield "expiry", (entry.indexed, entry.row), key
    if entry.tag is not None:
        yield "tags", (tag_key(entry.tag), entry.row), key
    if entry.flags & LONG:
        number, length = entry.place()
        yield "bodies", number, length
    if type(key) is tuple and len(key) == 2:
        yield "keys", key[1], None


def _repair(work: Work) -> None:
    """Rebuilds the indexes and counts from the entries. Entries that cannot be read, or whose body or key is lost,
    are removed."""
    tx, space = work.tx, work.space
    for table in (space.order, space.expiry, space.rank, space.tags, space.counts):
        tx[table].clear()
    bodies, keys = set(), set()
    count = size = 0
    for key, record in list(tx[space.entries].range()):
        try:
            entry = unpack(record)._replace(region=FRESH, rank=0.0)
            entry = entry._replace(indexed=entry.expire).recounted(key)
        except Exception:
            tx.remove(space.entries, key)
            continue
        if entry.flags & LONG:
            number, length = entry.place()
            body = tx.get(space.bodies, number)
            if body is None or len(body) != length:
                tx.remove(space.entries, key)
                continue
            bodies.add(number)
        if type(key) is tuple and len(key) == 2:
            if tx.get(space.keys, key[1]) is None:
                tx.remove(space.entries, key)
                continue
            keys.add(key[1])
        tx.put(space.entries, key, entry.pack())
        for what, at, value in _rows_of(key, entry):
            if what not in ("bodies", "keys"):
                tx.put(getattr(space, what), at, value)
        count += 1
        size += entry.size()
    for table, known in ((space.bodies, bodies), (space.keys, keys)):
        for at in [at for at, _ in tx[table].range() if at not in known]:
            tx.remove(table, at)
    tx.put(space.counts, space.stripe() + COUNT, count)
    tx.put(space.counts, space.stripe() + SIZE, size)
