"""Operations of a cache on all its entries: iteration, removal and culling."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from .. import Transaction
from . import checking
from .base import BUSY, Base
from .eviction import evict, expired_keys, first_expiry, remove_expired
from .record import Entry
from .space import FRESH_FOR, HITS, MISSES
from .work import Work

_R = TypeVar("_R")

# Entries that `clear`, `expire`, `evict` and `cull` remove in one transaction.
BATCH = 100
# Behind the last row.
END = 2**63


class Many(Base):
    """Iterates over entries and removes them."""

    def __len__(self) -> int:
        """The number of entries, expired ones included. Reads up to 256 counts."""
        return int(self.reset("count")) + self._pending()[0]

    def volume(self) -> int:
        """The bytes of all entries: their keys, values and headers. Reads up to 256 counts."""
        return int(self.reset("size")) + self._pending()[1]

    def _pending(self) -> tuple[int, int]:
        """The entries and bytes that the thread's `transact` block has added, which `finish` adds to the counts."""
        block = self._block()
        return (0, 0) if block is None else (block.work.count, block.work.size)

    def stats(self, enable: bool = True, reset: bool = False) -> tuple[int, int]:
        """Returns the numbers of hits and misses, and says whether reads are counted from now on."""
        space = self._opened()

        def run(tx: Transaction) -> tuple[int, int]:
            sums = [0, 0, 0, 0]
            for key, value in tx[space.counts].range():
                if key % 4 in (HITS, MISSES):
                    if reset:
                        value = tx.get_for_update(space.counts, key, 0)
                        tx.put(space.counts, key, 0)
                    sums[key % 4] += value
            return sums[HITS], sums[MISSES]

        result = self._single(run, retry=True)
        if bool(self.statistics) != enable:
            self.reset("statistics", int(enable))
        return result

    def _keys(self, table: str, reverse: bool) -> Iterator[Any]:
        """The keys in the order of a table, expired ones included, as they were when the iteration began."""
        space = self._opened()
        rows = getattr(space, table)
        block = self._block()
        if block is not None:
            rows = block.work.tx[rows]
        pairs = rows.range(reverse=reverse)
        which = 0 if table == "entries" else 1
        for pair in pairs:
            with contextlib.suppress(KeyError):
                # A long key that was removed since.
                yield self._key_of(pair[which], space)

    def iterkeys(self, reverse: bool = False) -> Iterator[Any]:
        """Iterates over the keys in order: None, bytes, str, other plain data, int, float, bool."""
        return self._keys("entries", reverse)

    def __iter__(self) -> Iterator[Any]:
        """Iterates over the keys in the order of insertion, expired ones included."""
        return self._keys("order", False)

    def __reversed__(self) -> Iterator[Any]:
        return self._keys("order", True)

    def clear(self, retry: bool = False) -> int:
        """Removes all entries, and returns their number. Transactions of 100: raises `Timeout` with the number of
        entries that it had removed."""
        return self._remove(checking.inserted_after, retry)

    def evict(self, tag: Any, retry: bool = False) -> int:
        """Removes all entries with a tag, and returns their number. O(entries with the tag); for the tag None O(all
        entries). Transactions of 100, as `clear`."""
        if tag is None:
            return self._remove(checking.inserted_after, retry, lambda entry: entry.tag is None)
        return self._remove(
            checking.tagged_after(tag), retry, lambda entry: type(entry.tag) is type(tag) and entry.tag == tag
        )

    def expire(self, now: float | None = None, retry: bool = False) -> int:
        """Removes all expired entries, and returns their number. O(expired entries). Transactions of 100."""
        at = time.time() if now is None else now

        def run(work: Work) -> tuple[int, bool]:
            rows = expired_keys(work.tx[work.space.expiry], at, BATCH)
            return remove_expired(work, rows, at), len(rows) == BATCH

        total, more = 0, True
        while more:
            removed, more = self._batch(run, retry, total)
            total += removed
        return total

    def _remove(
        self,
        batch: Callable[[Work, int, int], list[tuple[int, Any]]],
        retry: bool,
        chosen: Callable[[Entry], bool] = lambda entry: True,
    ) -> int:
        def run(work: Work) -> tuple[int, int]:
            rows = batch(work, last, BATCH)
            removed = 0
            for row, key in rows:
                entry = work.find(key)
                if entry is not None and entry.row == row and chosen(entry):
                    work.delete(key, entry)
                    removed += 1
            return removed, rows[-1][0] if rows else END

        total, last = 0, -1
        while last != END:
            removed, last = self._batch(run, retry, total)
            total += removed
        return total

    def cull(self, retry: bool = False) -> int:
        """Removes expired entries, then entries chosen by the policy until the volume is at most `size_limit`.
        Returns the number of removed entries."""
        now = time.time()
        total = self.expire(now)
        if self._policy == 0:
            return total
        while self.volume() > self.size_limit:
            removed = self._batch(lambda work: evict(work, self._policy, self._share()), retry, total)
            if not removed:
                break
            total += removed
        return total

    def _share(self) -> int:
        """How many entries to evict before the volume is looked at again."""
        count = len(self) or 1
        over = self.volume() - self.size_limit
        return max(1, min(BATCH, over * count // max(1, self.volume())))

    def _cull_some(self, now: float, at: float) -> None:
        """Called by `set` after its commit: removes up to `cull_limit` entries if some have expired or the cache is too
        large. It never waits for a lock: entries locked by another process are left to the next call."""
        limit = self.cull_limit
        space = self._opened()
        if at < space.next_expiry:
            space.next_expiry = at
        if not limit or self._block() is not None:
            return
        if space.next_expiry < now or not space.expiry_known_at <= now < space.expiry_known_at + FRESH_FOR:
            space.expiry_known_at = now
            rows = expired_keys(space.expiry, now, limit)
            if rows:
                limit -= self._try(lambda work: remove_expired(work, rows, now)) or 0
            if len(rows) < self.cull_limit:
                space.next_expiry = first_expiry(space)
        if limit <= 0 or self._policy == 0 or space.volume_now(self.size_limit, now) < self.size_limit:
            return
        # `owed` counts entries that earlier calls did not remove because they were locked.
        if self._try(lambda work: evict(work, self._policy, limit + space.owed)) is None:
            space.owed = min(space.owed + limit, BATCH)
        else:
            space.owed = 0

    def _try(self, body: Callable[[Work], int]) -> int | None:
        """Runs a transaction that does not wait for locks. None if one was not free."""
        space = self._opened()
        size = 0

        def run(tx: Transaction) -> int:
            nonlocal size
            work = Work(tx, space)
            result = body(work)
            work.finish()
            size = work.size
            return result

        try:
            result = space.store.write(run, time=0, level="read-committed")
        except BUSY:
            return None
        space.volume += size
        return result
