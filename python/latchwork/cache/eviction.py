"""Removes expired entries, and entries chosen by the policy when the cache is too large.

The eviction index is lazy. An insertion puts an entry into the region of fresh entries, in order of time; neither a
read nor another `set` moves it. Culling merges that region with the region of its policy and takes the least place.
If the entry was used since, it gets its true place in the policy's region, and the next one is taken. A place is never
above the true rank, so the entry that is evicted has the least rank, and an entry moves at most once for each time
that it was used. Policies may change at any time, and processes with different policies may share a cache.
"""

from __future__ import annotations

import heapq
from typing import Any

from .record import FRESH, TOUCHED
from .space import Space
from .work import LEAST_FREQUENTLY_USED, Work, rank_of


def expired_keys(expiry: Any, now: float, limit: int) -> list[tuple[float, int, Any]]:
    """The first rows of the expiry index that are due: time, row and key."""
    rows = expiry.range(None, (now, 0), limit=limit)
    return [(at, row, key) for (at, row), key in rows]


def first_expiry(space: Space) -> float:
    """The first time in the expiry index."""
    first = space.expiry.first()
    return float("inf") if first is None else float(first[0][0])


def remove_expired(work: Work, rows: list[tuple[float, int, Any]], now: float) -> int:
    """Removes the entries of rows of the expiry index. Entries with a later time are moved instead."""
    removed = 0
    for at, row, key in rows:
        entry = work.find(key)
        if entry is None or entry.row != row or entry.indexed != at:
            continue
        if entry.expire < now:
            work.delete(key, entry)
            removed += 1
        else:
            work.move_expiry(key, entry)
    return removed


def evict(work: Work, policy: int, limit: int) -> int:
    """Removes the `limit` entries with the least rank. O(limit + entries that were used since they were placed)."""
    removed = 0
    while removed < limit:
        wanted = limit - removed
        candidates, left = _candidates(work, policy, wanted)
        progress = False
        while candidates and removed < limit:
            _, region, rank, row, key = heapq.heappop(candidates)
            left[region] -= 1
            entry = work.find(key)
            if entry is not None and (entry.row, entry.region, entry.rank) == (row, region, rank):
                progress = True
                true = rank_of(entry, policy)
                if region == FRESH and not entry.flags & TOUCHED or region == policy and true <= rank:
                    work.delete(key, entry)
                    removed += 1
                else:
                    work.move_rank(key, entry, policy, true)
                    heapq.heappush(candidates, (true, policy, true, row, key))
                    left[policy] += 1
            if left[region] == 0:
                # The next one of that region is not among the candidates.
                break
        if not progress:
            break
    return removed


def _candidates(work: Work, policy: int, limit: int) -> tuple[list[Any], dict[int, int]]:
    """The first `limit` entries of the region of fresh ones and of the policy's, as a heap of (lower bound, place,
    key), and how many entries of each region may be taken before the heap lacks one; a region that was read to its
    end never lacks one."""
    table = work.tx[work.space.rank]
    heap: list[Any] = []
    for (region, rank, row), key in table.range(*_bounds(FRESH), limit=limit):
        least = 0.0 if policy == LEAST_FREQUENTLY_USED else row / 1e9
        heap.append((least, region, rank, row, key))
    fresh = len(heap)
    for (region, rank, row), key in table.range(*_bounds(policy), limit=limit):
        heap.append((rank, region, rank, row, key))
    if not heap:
        # Entries that other policies have moved are last.
        for (region, rank, row), key in table.range(limit=limit):
            heap.append((0.0, region, rank, row, key))
        policy = -1
    # Keys are not compared: no two candidates have the same row.
    heapq.heapify(heap)
    moved = len(heap) - fresh
    left = {region: 2**62 for region in range(4)}
    if fresh == limit:
        left[FRESH] = fresh
    if moved == limit and policy >= 0:
        left[policy] = moved
    return heap, left


def _bounds(region: int) -> tuple[tuple[int, float, int], tuple[int, float, int]]:
    return (region, 0.0, 0), (region + 1, 0.0, 0)
