"""One process: calls, scans, the interpreter's lock, the import, the wheel."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import latchwork

try:
    import lmdb
except ImportError:
    lmdb = None

VALUE = b"v" * 100


def rounds(arguments: Any, usual: int) -> int:
    return 3 if arguments.quick else usual


def key(number: int) -> bytes:
    return b"key:%012d" % number


def both(
    count: int, ours: Callable[[], int], theirs: Callable[[], int] | None
) -> tuple[list[float], list[float]]:
    """Microseconds of a call of both sides, in turns. A side returns how many calls it made."""
    found: tuple[list[float], list[float]] = ([], [])
    sides = [(0, ours)] + ([(1, theirs)] if theirs else [])
    for turn in range(count):
        for side, run in sides if turn % 2 == 0 else sides[::-1]:
            start = time.perf_counter()
            calls = run()
            found[side].append(1e6 * (time.perf_counter() - start) / calls)
    return found


def rival(folder: Path) -> Any:
    # Commits wait for nothing on both sides.
    return lmdb.open(str(folder / "lmdb"), map_size=4 << 30, sync=False, metasync=False, writemap=False)


def filled(folder: Path, count: int) -> tuple[latchwork.Store, latchwork.Table, Any]:
    db = latchwork.open(folder / "store", mode="none", cache=512 << 20)
    table = db.table("rows", keys="bytes", values="bytes")
    env = rival(folder) if lmdb else None
    for start in range(0, count, 10_000):
        rows = [(key(number), VALUE) for number in range(start, min(start + 10_000, count))]
        table.update(rows)
        if env:
            with env.begin(write=True) as txn:
                txn.cursor().putmulti(rows)
    return db, table, env


def get(folder: Path, arguments: Any) -> Iterator[dict[str, Any]]:
    count = 10_000 if arguments.quick else 100_000
    db, table, env = filled(folder, count)
    keys = [key(number) for number in range(count)]
    random.Random(1).shuffle(keys)
    view = db.snapshot()[table]
    txn = env.begin() if env else None

    def ours() -> int:
        get = view.get
        for one in keys:
            get(one)
        return count

    def theirs() -> int:
        get = txn.get
        for one in keys:
            get(one)
        return count

    assert all(view.get(one) == VALUE for one in keys[:100])
    of, to = both(rounds(arguments, 11), ours, theirs if env else None)
    yield {"name": "snapshot get, bytes", "unit": "us", "rival": "py-lmdb", "ours": of, "theirs": to, "goal": 1.0}
    table_get = table.get

    def as_calls() -> int:
        for one in keys:
            table_get(one)
        return count

    def as_transactions() -> int:
        for one in keys:
            with env.begin() as txn:
                txn.get(one)
        return count

    of, to = both(rounds(arguments, 7), as_calls, as_transactions if env else None)
    yield {"name": "get, a snapshot each", "unit": "us", "rival": "py-lmdb", "ours": of, "theirs": to}
    if txn:
        txn.abort()


def put(folder: Path, arguments: Any) -> Iterator[dict[str, Any]]:
    count = 5_000 if arguments.quick else 50_000
    db, table, env = filled(folder, count)
    keys = [key(number) for number in range(count)]
    random.Random(2).shuffle(keys)

    def ours() -> int:
        put = table.put
        for one in keys:
            put(one, VALUE)
        return count

    def theirs() -> int:
        begin = env.begin
        for one in keys:
            with begin(write=True) as txn:
                txn.put(one, VALUE)
        return count

    def theirs_short() -> int:
        put = env.begin
        for one in keys:
            txn = put(write=True)
            txn.put(one, VALUE)
            txn.commit()
        return count

    of, to = both(rounds(arguments, 9), ours, theirs if env else None)
    yield {"name": "put without waiting", "unit": "us", "rival": "py-lmdb", "ours": of, "theirs": to, "goal": 0.7}
    of, to = both(rounds(arguments, 5), ours, theirs_short if env else None)
    yield {"name": "put, txn.commit()", "unit": "us", "rival": "py-lmdb", "ours": of, "theirs": to}


def scan(folder: Path, arguments: Any) -> Iterator[dict[str, Any]]:
    count = 100_000 if arguments.quick else 1_000_000
    db, table, env = filled(folder, count)
    snapshot = db.snapshot()

    def ours() -> int:
        rows = 0
        for _key, _value in snapshot[table].items():
            rows += 1
        assert rows == count
        return rows

    def theirs() -> int:
        rows = 0
        with env.begin() as txn:
            for _key, _value in txn.cursor():
                rows += 1
        assert rows == count
        return rows

    of, to = both(rounds(arguments, 7), ours, theirs if env else None)
    rates = [[1 / one for one in side] for side in (of, to)]
    yield {
        "name": f"scan of {count:,} rows", "unit": "M/s", "rival": "py-lmdb", "ours": rates[0], "theirs": rates[1], "goal": 1.0,
        "more_is_better": True,
    }


def gil(folder: Path, arguments: Any) -> Iterator[dict[str, Any]]:
    count = 100_000 if arguments.quick else 1_000_000
    db, table, _ = filled(folder, count)
    snapshot = db.snapshot()

    def counted(seconds: float) -> float:
        over, number = time.perf_counter() + seconds, 0
        while time.perf_counter() < over:
            number += 1
        return number / seconds

    alone, beside = [], []
    for _ in range(rounds(arguments, 7)):
        alone.append(counted(0.5))
        stop = threading.Event()

        def reads() -> None:
            while not stop.is_set():
                assert snapshot[table].count() == count

        thread = threading.Thread(target=reads)
        thread.start()
        beside.append(counted(0.5))
        stop.set()
        thread.join()
    yield {
        "name": "GIL: counting beside a long range", "unit": "1/s", "rival": "counting alone", "ours": beside, "theirs": alone, "goal": 0.95,
        "more_is_better": True, "note": "two threads",
    }


def imports(_: Path, arguments: Any) -> Iterator[dict[str, Any]]:
    def run(source: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", source], check=True)
        return 1e3 * (time.perf_counter() - start)

    with_it, without = [], []
    for _ in range(rounds(arguments, 21)):
        with_it.append(run("import latchwork"))
        without.append(run("pass"))
    least = min(with_it) - min(without)
    yield {
        "name": "import", "unit": "ms", "rival": "", "ours": [least], "goal": 20.0, "note": "the least of all runs, without Python's own start",
    }


def wheel(_: Path, arguments: Any) -> Iterator[dict[str, Any]]:
    if arguments.wheel:
        yield {"name": "wheel", "unit": "MB", "rival": "", "ours": [arguments.wheel.stat().st_size / 1e6], "goal": 5.0}
