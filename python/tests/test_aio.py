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


def test_calls_that_would_wait_for_themselves(db: latchwork.Store) -> None:
    t = db["t"]

    async def main() -> None:
        start = time.monotonic()

        async def blocks(tx: latchwork.AsyncTransaction) -> None:
            await tx.put(t, "a", 1)
            await asyncio.sleep(0.01)
            t["a"] = 2

        async def nested(tx: latchwork.AsyncTransaction) -> None:
            async def inner(other: latchwork.AsyncTransaction) -> None:
                await other.put(t, "b", 1)
                await other.put(t, "a", 2)

            await tx.put(t, "a", 1)
            await db.aio.write(inner)

        async def iterates(tx: latchwork.AsyncTransaction) -> None:
            await tx.put(t, "a", 1)
            db.write(lambda other: list(other[t]))

        for function in (blocks, nested, iterates):
            with pytest.raises(latchwork.OwnTransaction) as error:
                await db.aio.write(function)
            assert error.value.table == "t"

        # Another task of the loop: the call would keep the loop from running the task that has the lock.
        has, go_on = asyncio.Event(), asyncio.Event()

        async def holds(tx: latchwork.AsyncTransaction) -> None:
            await tx.put(t, "a", 3)
            has.set()
            await go_on.wait()

        holder = asyncio.create_task(db.aio.write(holds))
        await has.wait()
        for call in (lambda: t.put("a", 4), lambda: db.write(lambda tx: tx[t].get("a")), lambda: t.add("a")):
            with pytest.raises(latchwork.OwnTransaction):
                call()

        # A task waits for it, and a thread does.
        async def waits(tx: latchwork.AsyncTransaction) -> None:
            await tx.add(t, "a", 10)

        waiter = asyncio.create_task(db.aio.write(waits))
        thread = asyncio.create_task(asyncio.to_thread(t.add, "a", 100))
        await asyncio.sleep(0.05)
        assert not waiter.done() and not thread.done()
        go_on.set()
        await asyncio.gather(holder, waiter, thread)
        assert time.monotonic() - start < 5

    asyncio.run(main())
    assert dict(t) == {"a": 113} and not db.locks()


def test_functions_and_their_awaitables(db: latchwork.Store) -> None:
    t = db["t"]

    class Awaitable:
        def __init__(self, tx: latchwork.AsyncTransaction) -> None:
            self.tx = tx

        def __await__(self) -> object:
            yield from self.tx.put(t, "a", 1).__await__()
            return "done"

    async def main() -> None:
        assert await db.aio.write(Awaitable) == "done"  # type: ignore[arg-type]
        assert await db.aio.write(lambda tx: tx.add(t, "a")) == 2
        with pytest.raises(TypeError, match="coroutine function"):
            await db.aio.write(lambda tx: 7)  # type: ignore[arg-type, return-value]

        async def finds(tx: latchwork.AsyncTransaction) -> str:
            try:
                await asyncio.wait_for(asyncio.sleep(10), 0.01)
            except asyncio.TimeoutError:
                await tx.put(t, "late", 1)
            return "late"

        assert await db.aio.write(finds) == "late"

    asyncio.run(main())
    assert dict(t) == {"a": 2, "late": 1} and not db.locks()


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
