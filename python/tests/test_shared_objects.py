"""Objects that several threads use at once, and handles that are dropped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import latchwork

THREADS = 4


def together(work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_transaction_is_used_by_one_thread_at_a_time(db: latchwork.Store) -> None:
    misused = 0
    written: set[int] = set()
    numbers = iter(range(20_000))
    lock = threading.Lock()

    def body(tx: latchwork.Transaction) -> None:
        def work() -> None:
            nonlocal misused
            for number in numbers:
                try:
                    tx["x"].put(number, number)
                except latchwork.Misuse:
                    with lock:
                        misused += 1
                else:
                    with lock:
                        written.add(number)

        together(work)

    # The threads share one iterator of numbers, which the interpreter's lock protects.
    db.write(body)
    assert set(db["x"].keys()) == written
    assert misused + len(written) == 20_000 and written


def test_threads_share_an_iterator(db: latchwork.Store) -> None:
    x = db["x"]
    x.update((number, number) for number in range(5000))
    for _ in range(10):
        rows, keys = iter(x.items()), []
        together(lambda rows=rows, keys=keys: keys.extend(key for key, _ in rows))
        assert sorted(keys) == list(range(5000))


def test_a_snapshot_is_closed_under_an_iterator(db: latchwork.Store) -> None:
    x = db["x"]
    x.update((number, number) for number in range(20_000))
    for _ in range(20):
        snapshot = db.snapshot()
        rows = iter(snapshot["x"].items())
        counted: list[int] = []

        def count(rows=rows, counted=counted) -> None:
            try:
                for _ in rows:
                    counted.append(1)
            except latchwork.Closed:
                pass

        thread = threading.Thread(target=count)
        thread.start()
        snapshot.close()
        thread.join()
        assert len(counted) <= 20_000


def test_a_dropped_handle_closes_the_store(folder: Path) -> None:
    for _ in range(150):
        assert latchwork.open(folder, mode="none", small=True)["hits"].add("x") > 0
    with latchwork.open(folder, mode="none", small=True) as db:
        assert db["hits"]["x"] == 150


def test_change_has_a_time_limit(db: latchwork.Store) -> None:
    db["x"]["key"] = 1
    other = db.begin()
    other["x"]["key"] = 2
    with pytest.raises(latchwork.Deadline):
        done: list[BaseException] = []

        def waits() -> None:
            try:
                db["x"].change("key", lambda old: old, time=0.05)
            except latchwork.Error as error:
                done.append(error)

        thread = threading.Thread(target=waits)
        thread.start()
        thread.join(8)
        assert not thread.is_alive()
        raise done[0]
    other.roll_back()
