"""Queues in a cache: entries whose keys are numbers, or texts that end in a number.

A push or a pull looks for the end of its queue and then changes it, so one of them runs at a time in a cache. They use
the lock of `transact` blocks for that: with a lock of its own, a pull could wait for an entry that a block has changed,
and the block for the pull.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .record import Entry
from .work import Work

if TYPE_CHECKING:
    from .core import Cache

MIDDLE = 500_000_000_000_000
LAST = 999_999_999_999_999
LONGEST_PREFIX = 400


def bounds(prefix: str | None) -> tuple[Any, Any]:
    """The keys between which those of a queue are, both excluded."""
    if prefix is None:
        return 0, LAST
    if len(prefix) > LONGEST_PREFIX:
        raise ValueError(f"the prefix of a queue has at most {LONGEST_PREFIX} characters, not {len(prefix)}")
    return f"{prefix}-{0:015d}", f"{prefix}-{LAST:015d}"


def push(
    cache: Cache, work: Work, prefix: str | None, side: str, body: bytes, now: float, at: float, tag: Any
) -> Any:
    """Adds an entry beyond the last one of a side."""
    step = _step(side)
    work.alone()
    outermost = next(_keys(cache, work, prefix, side), None)
    number = MIDDLE if outermost is None else _number(outermost, prefix) + step
    while True:
        key = number if prefix is None else f"{prefix}-{number:015d}"
        # A program may have stored something under a key of the queue.
        if work.find(key) is None:
            work.insert(key, None, body, now, at, tag, ranked=cache._policy != 0)
            return key
        number += step


def pull(cache: Cache, work: Work, prefix: str | None, side: str, now: float) -> tuple[Any, Entry, bytes] | None:
    """Removes the outermost entry of a side that has not expired, and the expired ones before it."""
    _step(side)
    work.alone()
    for key in _keys(cache, work, prefix, side):
        entry = work.find(key)
        if entry is None:
            continue
        body = work.body(entry)
        work.delete(key, entry)
        if entry.expire > now:
            return key, entry, body
    return None


def ends(cache: Cache, prefix: str | None, side: str) -> list[Any]:
    """The outermost key of a side; nothing if the queue is empty."""
    _step(side)
    return list(itertools.islice(_keys(cache, _current(cache), prefix, side), 1))


def inserted(cache: Cache, last: bool) -> list[Any]:
    """The key of the entry that was inserted last, or first, as the table has it; nothing if there is none."""
    work = _current(cache)
    order = cache._opened().order if work is None else work.tx[work.space.order]
    found = order.last() if last else order.first()
    return [] if found is None else [found[1]]


def _current(cache: Cache) -> Work | None:
    """The transaction of the thread's `transact` block."""
    block = cache._block()
    return None if block is None else block.work


def _step(side: str) -> int:
    if side == "back":
        return 1
    if side == "front":
        return -1
    raise ValueError(f"side is 'front' or 'back', not {side!r}")


def _number(key: Any, prefix: str | None) -> int:
    return int(key) if prefix is None else int(key[len(prefix) + 1 :])


def _keys(cache: Cache, work: Work | None, prefix: str | None, side: str) -> Iterator[Any]:
    """The keys of a queue, from one side, a few at a time."""
    table = cache._opened().entries if work is None else work.tx[work.space.entries]
    lo, hi = bounds(prefix)
    back = side == "back"
    # One more than is wanted: the lower bound is included.
    limit = 2
    while True:
        found = [key for key, _ in table.range(lo, hi, reverse=back, limit=limit) if key != lo]
        yield from found
        if not found:
            return
        if back:
            hi = found[-1]
        else:
            lo = found[-1]
        limit = 9
