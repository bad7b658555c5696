"""Transactions: the three retrying forms, single tries, snapshots, savepoints, threads."""

from __future__ import annotations

import threading
import time

import pytest

import latchwork


def test_forms(db: latchwork.Store) -> None:
    t = db["t"]

    def move(tx: latchwork.Transaction) -> int:
        tx[t]["a"] = tx[t].get("a", 0) + 1
        tx.put("t", "b", tx.get("t", "a"))
        return tx["t"].add("a", 10)

    assert db.write(move) == 11 and dict(t) == {"a": 11, "b": 1}

    @db.transaction(label="decorated")
    def again(tx: latchwork.Transaction, more: int, *, key: str) -> int:
        """Says what it does."""
        return tx.add(t, key, more)

    assert again(5, key="b") == 6 and again.__doc__ == "Says what it does."
    for attempt in db.attempts():
        with attempt as tx:
            tx.remove(t, "b")
    assert dict(t) == {"a": 11}
    with db.begin() as tx:
        tx[t]["c"] = 1
    assert t["c"] == 1 and not tx.is_open
    with pytest.raises(latchwork.Closed):
        tx.get(t, "c")


def test_an_exception_rolls_back(db: latchwork.Store) -> None:
    t = db["t"]

    def fails(tx: latchwork.Transaction) -> None:
        tx[t]["a"] = 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        db.write(fails)
    with pytest.raises(ZeroDivisionError):
        for attempt in db.attempts():
            with attempt as tx:
                fails(tx)
    with pytest.raises(ZeroDivisionError):
        with db.begin() as tx:
            fails(tx)
    with pytest.raises(KeyError):
        db.write(lambda tx: tx[t]["none"])
    with pytest.raises(ZeroDivisionError):
        t.change("a", lambda _: 1 // 0)
    tx = db.begin()
    tx[t]["a"] = 1
    tx.roll_back()
    tx = db.begin()
    tx[t]["a"] = 1
    del tx
    assert len(t) == 0 and not db.locks()


def test_isolation_and_reads(db: latchwork.Store) -> None:
    t = db["t"]
    t.update({"a": 1, "b": 2})
    tx = db.begin()
    tx[t]["c"] = 3
    assert list(tx[t].items()) == [("a", 1), ("b", 2), ("c", 3)] and list(t) == ["a", "b"]
    assert tx[t].first() == ("a", 1) and tx[t].last() == ("c", 3) and len(tx[t]) == 3 and "c" in tx[t]
    assert list(tx[t].range("b", reverse=True)) == [("c", 3), ("b", 2)] and list(tx[t].range(limit=0)) == []
    save = tx.savepoint()
    tx[t].clear()
    tx.roll_back_to(save)
    assert tx[t].get_for_update("a") == 1 and tx.get_for_update(t, "z", 9) == 9
    before = db.snapshot()
    tx.commit()
    after = db.snapshot()
    assert "c" not in before[t] and after[t]["c"] == 3 and before.at < after.at
    assert list(before[t].keys()) == ["a", "b"] and before.get("t", "a") == 1 and before[t].last() == ("b", 2)
    other = db.begin()
    with pytest.raises(latchwork.Misuse):
        other.roll_back_to(save)


def test_an_attempt_without_with_is_misuse(db: latchwork.Store) -> None:
    with pytest.raises(latchwork.Misuse):
        for _ in db.attempts():
            pass


def in_thread(function: object) -> None:
    thread = threading.Thread(target=function)  # type: ignore[arg-type]
    thread.start()
    thread.join()


def test_conflicts(db: latchwork.Store) -> None:
    t = db["t"]
    t["k"] = 0
    held = []

    def hold() -> None:
        tx = db.begin()
        tx[t]["k"] = 1
        held.append(tx)

    in_thread(hold)
    tx = db.begin(time=0)
    with pytest.raises(latchwork.Conflict) as found:
        tx[t]["k"] = 2
    assert found.value.retryable and found.value.table == "t"
    # A failed transaction stays failed until it is restarted.
    with pytest.raises(latchwork.Conflict):
        tx.commit()
    with pytest.raises(latchwork.Deadline) as late:
        db.write(lambda tx: tx[t].put("k", 3), time=0.05)
    assert isinstance(late.value, TimeoutError) and not late.value.retryable
    with pytest.raises(latchwork.Deadline):
        for attempt in db.attempts(time=0):
            with attempt as tx:
                tx.put(t, "k", 3)
    held[0].commit()
    assert db.write(lambda tx: tx.add(t, "k", 5)) == 6


def test_own_transaction_is_refused(db: latchwork.Store) -> None:
    t = db["t"]

    def nested(tx: latchwork.Transaction) -> None:
        tx[t]["k"] = 1
        t["k"] = 2

    with pytest.raises(latchwork.OwnTransaction):
        db.write(nested)


def test_one_thread_at_a_time(db: latchwork.Store) -> None:
    t = db["t"]
    t["k"] = 0
    blocker, tx = db.begin(), db.begin()
    in_thread(lambda: blocker.put(t, "k", 1))
    started = threading.Event()

    def wait() -> None:
        started.set()
        tx.put(t, "k", 2)

    thread = threading.Thread(target=wait)
    thread.start()
    started.wait()
    seen = False
    for _ in range(500):
        try:
            tx.get(t, "other")
        except latchwork.Misuse:
            seen = True
            break
        time.sleep(0.01)
    blocker.commit()
    thread.join()
    tx.roll_back()
    assert seen and t["k"] == 1


def test_deadlocks_are_run_again(db: latchwork.Store) -> None:
    t = db["t"]
    t.update({"a": 0, "b": 0})
    rounds, runs = 150, []

    def swap(first: str, second: str) -> None:
        for _ in range(rounds):
            count = 0

            def body(tx: latchwork.Transaction) -> None:
                nonlocal count
                count += 1
                tx[t].add(first)
                tx[t].add(second)

            db.write(body)
            runs.append(count)

    threads = [threading.Thread(target=swap, args=pair) for pair in [("a", "b"), ("b", "a"), ("a", "b"), ("b", "a")]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dict(t) == {"a": 4 * rounds, "b": 4 * rounds} and len(runs) == 4 * rounds


def test_the_error_of_the_function_does_not_decide(db: latchwork.Store) -> None:
    t = db["t"]
    t["k"] = 0
    held, runs = [], []

    def hold() -> None:
        tx = db.begin()
        tx[t]["k"] = 1
        held.append(tx)

    in_thread(hold)

    def converted(tx: latchwork.Transaction) -> None:
        runs.append(1)
        if len(runs) == 3:
            held[0].commit()
        try:
            tx.put(t, "k", 2)
        except latchwork.Conflict as why:
            raise RuntimeError("converted") from why

    # The wait of a run ends with the time of the transaction: so each run waits for a moment.
    with pytest.raises(latchwork.Deadline):
        db.write(converted, time=0.01)
    while len(runs) < 3:
        try:
            db.write(converted, time=0.01)
        except latchwork.Deadline:
            pass
    db.write(converted)
    assert t["k"] == 2


def test_many_threads_on_one_handle(db: latchwork.Store) -> None:
    t = db["n"]

    def count() -> None:
        for _ in range(300):
            t.add("n")
            t.get("n")

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert t["n"] == 2400


def test_a_shared_snapshot(db: latchwork.Store) -> None:
    t = db["n"]
    t.update((i, i) for i in range(3000))
    snapshot, wrong = db.snapshot(), []

    def read() -> None:
        for i in range(1000):
            if snapshot[t][i] != i:
                wrong.append(i)
        if len(list(snapshot[t])) != 3000:
            wrong.append(-1)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
