"""Transactions of tasks of asyncio."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import latchwork


def test_calls(db: latchwork.Store) -> None:
    t, q = db["t"], db["q"]

    async def main() -> None:
        async def body(tx: latchwork.AsyncTransaction) -> object:
            await tx.put(t, "a", 1)
            await tx.insert("t", "b", [2])
            assert await tx.get(t, "a") == 1 and await tx.get_for_update(t, "none", 7) == 7
            assert await tx.add(t, "a", 4) == 5 and await tx.remove(t, "b") and not await tx.remove(t, "b")
            with pytest.raises(latchwork.Exists):
                await tx.insert(t, "a", 1)
            assert [await tx.append(q, value) for value in "xyz"] == [0, 1, 2]
            assert await tx.pop_first(q) == (0, "x") and await tx.pop_last(q) == (2, "z")
            assert await tx.range(q) == [(1, "y")] and await tx.range(q, 2) == []
            return await tx.range(t, reverse=True, limit=1)

        assert await db.aio.write(body, label="task") == [("a", 5)]
        await db.aio.sync()

        @db.aio.transaction()
        async def later(tx: latchwork.AsyncTransaction, key: str) -> object:
            return await tx.get(t, key)

        assert await later("a") == 5

        async def fails(tx: latchwork.AsyncTransaction) -> None:
            await tx.put(t, "a", 9)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await db.aio.write(fails)

    asyncio.run(main())
    assert dict(t) == {"a": 5} and not db.locks()


def test_many_tasks_and_deadlocks(db: latchwork.Store) -> None:
    t = db["t"]
    t.update({"a": 0, "b": 0})

    async def main() -> None:
        async def swap(first: str, second: str) -> None:
            for _ in range(20):

                async def body(tx: latchwork.AsyncTransaction) -> None:
                    await tx.add(t, first)
                    await asyncio.sleep(0)
                    await tx.add(t, second)

                await db.aio.write(body)

        await asyncio.gather(*(swap(*pair) for pair in [("a", "b"), ("b", "a")] * 5))

    asyncio.run(main())
    assert dict(t) == {"a": 200, "b": 200}


def test_the_loop_goes_on_while_a_task_waits(db: latchwork.Store) -> None:
    t = db["t"]
    t["k"] = 0
    held: list[latchwork.Transaction] = []

    def hold() -> None:
        held.append(db.begin())
        held[0].put(t, "k", 1)

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()

    async def main() -> int:
        task = asyncio.ensure_future(db.aio.write(lambda tx: tx.add(t, "k", 10)))
        ticks = 0
        while ticks < 20:
            await asyncio.sleep(0.005)
            ticks += 1
            assert not task.done()
        held[0].commit()
        return await task

    assert asyncio.run(main()) == 11


def test_cancelled(db: latchwork.Store) -> None:
    t = db["t"]
    t["k"] = 0

    async def main() -> None:
        begun = asyncio.Event()

        async def body(tx: latchwork.AsyncTransaction) -> None:
            await tx.put(t, "k", 1)
            begun.set()
            await asyncio.sleep(60)

        first = asyncio.ensure_future(db.aio.write(body))
        await begun.wait()
        # This one waits for a lock when it is cancelled.
        second = asyncio.ensure_future(db.aio.write(lambda tx: tx.put(t, "k", 2)))
        await asyncio.sleep(0.05)
        second.cancel()
        first.cancel()
        for task in (first, second):
            with pytest.raises(asyncio.CancelledError):
                await task
        assert t["k"] == 0 and not db.locks()
        await db.aio.write(lambda tx: tx.put(t, "k", 3))
        with pytest.raises(latchwork.Deadline):
            with_lock = db.begin()
            await asyncio.to_thread(with_lock.put, t, "k", 4)
            await db.aio.write(lambda tx: tx.put(t, "k", 5), time=0.05)

    start = time.monotonic()
    asyncio.run(main())
    assert t["k"] == 3
    del start
