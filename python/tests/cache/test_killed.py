"""Processes that are killed at any instruction: entries, indexes, counters and queues agree afterwards."""

import collections
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from latchwork.cache import FanoutCache

WORKER = pathlib.Path(__file__).parent / "killed_worker.py"
KILLS = int(os.environ.get("LATCHWORK_KILLS", "25"))
PROCESSES = 4
SIZE_LIMIT = 60_000


@pytest.mark.parametrize("policy", ["least-recently-stored", "least-recently-used", "least-frequently-used"])
def test_nothing_is_lost_or_doubled_when_processes_are_killed(tmp_path, policy):
    folder = tmp_path / "cache"
    random.seed(policy)
    settings = {"eviction_policy": policy, "size_limit": SIZE_LIMIT, "cull_limit": 5, "statistics": 1}
    fanout = FanoutCache(folder, shards=1, timeout=60, **settings)
    cache = fanout._shards[0]
    # Counters and the queue lie in a cache of their own in the same store, in which nothing is evicted.
    kept = fanout.cache("kept", eviction_policy="none")
    started = []

    def start():
        number = len(started)
        command = [sys.executable, str(WORKER), str(folder), str(tmp_path / f"notes-{number}"), str(number)]
        process = subprocess.Popen(command)
        process.notes = tmp_path / f"notes-{number}"
        started.append(process)
        return process

    running = [start() for _ in range(PROCESSES)]
    try:
        for kill in range(KILLS):
            # Some of them work; others may still open the cache, and are killed in that.
            wait_for(lambda: sum(at_work(process) for process in running) >= PROCESSES // 2)
            time.sleep(random.uniform(0.0, 0.1))
            victim = running.pop(random.randrange(PROCESSES))
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            running.append(start())
            if kill % 5 == 4:
                # A snapshot of all tables agrees at any time, also while others write.
                assert differences(cache, kept) == []
    finally:
        for process in running:
            process.kill()
            process.wait()
    errors = [path.read_text() for path in tmp_path.glob("*.error")]
    assert errors == []
    assert differences(cache, kept) == []

    notes = collections.defaultdict(list)
    for path in tmp_path.glob("notes-*"):
        for line in path.read_text().splitlines():
            what, word = line.split()
            notes[what].append(word)
    deaths = len(started)
    numbers = [int(word) for word in notes["incr"]]
    print(f"{policy}: {deaths} processes killed, {len(numbers)} increments, {len(notes['pull'])} pulls")
    # Increments: no number twice, and what is missing was in hand when its process was killed.
    assert len(set(numbers)) == len(numbers)
    assert len(numbers) <= kept["count"] <= len(numbers) + deaths
    assert kept.get("left") == kept.get("right")
    # The queue: no item twice, and none lost but those in the hand of a killed process.
    pulled = collections.Counter(notes["pull"])
    assert max(pulled.values(), default=0) == 1
    left = []
    while (item := kept.pull(prefix="queue"))[0] is not None:
        left.append(item[1])
    assert len(set(left)) == len(left)
    assert not set(left) & set(pulled)
    lost = set(notes["push"]) - set(pulled) - set(left)
    assert len(lost) <= deaths
    # In the order in which each process has pushed them.
    for process in {word.split("-")[0] for word in left}:
        of_one = [int(word.split("-")[1]) for word in left if word.split("-")[0] == process]
        assert of_one == sorted(of_one)
    assert differences(cache, kept) == []
    assert len(numbers) > KILLS


def at_work(process):
    return process.notes.exists() and process.notes.stat().st_size > 0


def wait_for(done):
    deadline = time.monotonic() + 120
    while not done():
        assert time.monotonic() < deadline, "the processes do not begin to work"
        time.sleep(0.005)


def differences(*caches):
    return [str(warning.message) for cache in caches for warning in cache.check()]
