"""Eight processes: counters, with a process killed each 100 ms, and a queue."""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROCESSES = 8
SLOT = struct.Struct("<Q")

# Each program counts its acknowledged operations in its slot of a shared file, which outlives a killed
# process.
COMMON = """
import mmap, os, struct, sys
folder, me = sys.argv[1], int(sys.argv[2])
slots = mmap.mmap(os.open(folder + "/slots", os.O_RDWR), 0)
slot = struct.Struct("<Q")
done = slot.unpack_from(slots, 8 * me)[0]
"""

COUNTERS = {
    "latchwork": """
import latchwork
add = latchwork.open(folder + "/store", mode="none")["counters"].add
while True:
    add("n%d" % (done % 7))
    done += 1
    slot.pack_into(slots, 8 * me, done)
""",
    "diskcache": """
import diskcache
add = diskcache.Cache(folder + "/cache", timeout=60).incr
while True:
    add("n%d" % (done % 7), default=0)
    done += 1
    slot.pack_into(slots, 8 * me, done)
""",
    "sqlite3": """
import sqlite3
db = sqlite3.connect(folder + "/db", timeout=60, isolation_level=None)
db.execute("pragma journal_mode=wal")
db.execute("pragma synchronous=off")
db.execute("create table if not exists counters (name text primary key, n integer)")
while True:
    db.execute("insert into counters values (?, 1) on conflict (name) do update set n = n + 1", ("n%d" % (done % 7),))
    done += 1
    slot.pack_into(slots, 8 * me, done)
""",
}


def total(subject: str, folder: Path) -> int:
    if subject == "latchwork":
        import latchwork

        with latchwork.open(folder / "store", mode="none") as db:
            return sum(db["counters"].values())
    if subject == "diskcache":
        import diskcache

        cache = diskcache.Cache(str(folder / "cache"))
        return sum(cache[name] for name in cache)
    import sqlite3

    return int(sqlite3.connect(folder / "db").execute("select sum(n) from counters").fetchone()[0])


class Crew:
    """Eight processes of one program."""

    def __init__(self, folder: Path, source: str) -> None:
        self.folder, self.program = folder, folder / "program.py"
        folder.mkdir()
        self.program.write_text(COMMON + source)
        (folder / "slots").write_bytes(bytes(8 * 2 * PROCESSES))
        file = os.open(folder / "slots", os.O_RDWR)
        self.slots = mmap.mmap(file, 0)
        os.close(file)
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self, me: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(self.program), str(self.folder), str(me)])

    def begin(self) -> None:
        # The first one makes the store.
        self.workers = [self.start(0)]
        while self.done(0) == 0:
            time.sleep(0.01)
            assert self.workers[0].poll() is None, "the program has ended"
        self.workers += [self.start(me) for me in range(1, PROCESSES)]
        while not all(self.done(me) for me in range(PROCESSES)):
            time.sleep(0.01)

    def done(self, me: int) -> int:
        return int(SLOT.unpack_from(self.slots, 8 * me)[0])

    def all(self) -> int:
        return sum(self.done(me) for me in range(PROCESSES))

    def kill(self, me: int) -> None:
        self.workers[me].send_signal(signal.SIGKILL)
        self.workers[me].wait()

    def end(self) -> None:
        for me in range(PROCESSES):
            self.kill(me)


def installed(names: list[str]) -> list[str]:
    import importlib.util

    return [name for name in names if importlib.util.find_spec(name)]


def counters(folder: Path, arguments: Any) -> Iterator[dict[str, Any]]:
    seconds = 1.0 if arguments.quick else 4.0
    subjects = ["latchwork", *installed(["diskcache"]), "sqlite3"]
    rates: dict[str, list[float]] = {subject: [] for subject in subjects}
    faults: dict[str, tuple[int, int]] = {}
    for turn in range(2 if arguments.quick else 3):
        for subject in subjects if turn % 2 == 0 else subjects[::-1]:
            crew, rng, kills = Crew(folder / f"{subject}{turn}", COUNTERS[subject]), random.Random(turn), 0
            crew.begin()
            before, start = crew.all(), time.perf_counter()
            while time.perf_counter() - start < seconds:
                time.sleep(0.1)
                victim = rng.randrange(PROCESSES)
                crew.kill(victim)
                kills += 1
                crew.workers[victim] = crew.start(victim)
            rates[subject].append((crew.all() - before) / (time.perf_counter() - start))
            crew.end()
            said, found = crew.all(), total(subject, crew.folder)
            # A killed process may have done one unacknowledged operation.
            lost, doubled = max(0, said - found), max(0, found - said - kills - PROCESSES)
            old = faults.get(subject, (0, 0))
            faults[subject] = (old[0] + lost, old[1] + doubled)
    for subject in subjects[1:]:
        said = ", ".join(f"{name} {lost} lost {more} doubled" for name, (lost, more) in faults.items() if name in ("latchwork", subject))
        yield {
            "name": "counters, 8 processes, kills", "unit": "1/s", "rival": subject, "ours": rates["latchwork"], "theirs": rates[subject],
            "goal": 20.0, "more_is_better": True, "note": said,
        }
    assert faults["latchwork"] == (0, 0), faults


QUEUES = {
    "latchwork": """
import latchwork
db = latchwork.open(folder + "/store", mode="none")
queue, taken = db["queue"], db["taken"]
while True:
    queue.append((me, done))
    if queue.pop_first():
        done += 1
        slot.pack_into(slots, 8 * me, done)
""",
    "persistqueue": """
import persistqueue, sqlite3, time
while True:
    try:
        queue = persistqueue.SQLiteQueue(folder + "/queue", auto_commit=True, timeout=60)
        break
    except sqlite3.OperationalError:
        time.sleep(0.01)
while True:
    try:
        queue.put((me, done))
        queue.get(block=False)
    except (sqlite3.OperationalError, persistqueue.Empty):
        continue
    done += 1
    slot.pack_into(slots, 8 * me, done)
""",
}

# Every item is put with a name of its own and what is taken is written down: nothing is lost.
CHECKED = """
import latchwork
db = latchwork.open(folder + "/store", mode="none")
queue, taken = db["queue"], db["taken"]
def move(tx):
    found = tx[queue].pop_first()
    if found:
        tx[taken].insert(found[1], me)
while True:
    def put(tx):
        tx[queue].append((me, done))
        tx.put("put", me, done + 1)
    db.write(put)
    done += 1
    slot.pack_into(slots, 8 * me, done)
    db.write(move)
"""


def lost(folder: Path, seconds: float) -> str:
    """Items that were put by killed processes and are neither taken nor there, or taken twice."""
    import latchwork

    crew, rng = Crew(folder / "checked", CHECKED), random.Random(3)
    crew.begin()
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        time.sleep(0.1)
        victim = rng.randrange(PROCESSES)
        crew.kill(victim)
        with latchwork.open(crew.folder / "store", mode="none") as db:
            # The new process continues after the last value that was put.
            SLOT.pack_into(crew.slots, 8 * victim, db["put"].get(victim, 0))
        crew.workers[victim] = crew.start(victim)
    crew.end()
    with latchwork.open(crew.folder / "store", mode="none") as db:
        put = {(me, number) for me, count in db["put"].items() for number in range(count)}
        seen = [*db["taken"], *db["queue"].values()]
    missing, twice = len(put - set(seen)), len(seen) - len(set(seen))
    assert (missing, twice) == (0, 0), (missing, twice)
    return f"with kills {len(put)} put, {missing} lost, {twice} twice"


def queue(folder: Path, arguments: Any) -> Iterator[dict[str, Any]]:
    seconds = 1.0 if arguments.quick else 4.0
    subjects = ["latchwork", *installed(["persistqueue"])]
    rates: dict[str, list[float]] = {subject: [] for subject in subjects}
    for turn in range(2 if arguments.quick else 3):
        for subject in subjects if turn % 2 == 0 else subjects[::-1]:
            crew = Crew(folder / f"{subject}{turn}", QUEUES[subject])
            crew.begin()
            before, start = crew.all(), time.perf_counter()
            time.sleep(seconds)
            rates[subject].append((crew.all() - before) / (time.perf_counter() - start))
            crew.end()
    yield {
        "name": "queue, 8 processes", "unit": "1/s", "rival": "persist-queue", "ours": rates["latchwork"], "theirs": rates.get("persistqueue", []),
        "goal": 10.0, "more_is_better": True, "note": lost(folder, seconds),
    }
