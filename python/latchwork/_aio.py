"""Transactions of tasks of asyncio: while one waits for a lock or for the disk, the loop runs other tasks."""

from __future__ import annotations

import asyncio
import functools
import time as _time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

from ._errors import Deadline, Error
from ._latchwork import _AsyncTransaction, _Call

_R = TypeVar("_R")


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _run(call: _Call) -> Any:
    loop = asyncio.get_running_loop()
    try:
        while (waiter := call.poll(loop, _wake)) is not None:
            await waiter
    except BaseException:
        # The task is cancelled: the transaction is rolled back.
        call.drop()
        raise
    return call.result()


class _Parts:
    """Awaits what the function of a program returns, one part at a time. A call in a part that would wait for the
    transaction raises `OwnTransaction`: the thread would wait for itself."""

    __slots__ = ("_function", "_tx")

    def __init__(self, function: Callable[[AsyncTransaction], Awaitable[Any]], tx: _AsyncTransaction) -> None:
        self._function = function
        self._tx = tx

    def __await__(self) -> Generator[Any, Any, Any]:
        step = self._tx.step
        awaitable = step(self._function, AsyncTransaction(self._tx))
        if not hasattr(awaitable, "__await__"):
            kind = type(awaitable).__name__
            raise TypeError(f"the function of a transaction is a coroutine function, and this one returned {kind}")
        parts: Any = awaitable.__await__()
        call: Any = next
        argument: Any = parts
        while True:
            try:
                waits_for = step(call, argument)
            except StopIteration as end:
                return end.value
            try:
                value = yield waits_for
            except GeneratorExit:
                step(type(parts).close, parts)
                raise
            except BaseException as error:
                call, argument = parts.throw, error
            else:
                call, argument = (next, parts) if value is None else (parts.send, value)


class AsyncTransaction:
    """A transaction of a task: the function of `Store.aio.write` gets it. One call at a time."""

    __slots__ = ("_tx",)

    def __init__(self, tx: _AsyncTransaction) -> None:
        self._tx = tx

    async def get(self, table: Any, key: Any, default: Any = None) -> Any:
        return await _run(self._tx.get(table, key, default, False))

    async def get_for_update(self, table: Any, key: Any, default: Any = None) -> Any:
        """As `get`, and no other transaction reads the value for update until this one ends."""
        return await _run(self._tx.get(table, key, default, True))

    async def put(self, table: Any, key: Any, value: Any) -> None:
        await _run(self._tx.put(table, key, value, False))

    async def insert(self, table: Any, key: Any, value: Any) -> None:
        """As `put`; raises `Exists` if there is a record with this key."""
        await _run(self._tx.put(table, key, value, True))

    async def remove(self, table: Any, key: Any) -> bool:
        """Removes a record; returns whether there was one."""
        removed: bool = await _run(self._tx.remove(table, key))
        return removed

    async def add(self, table: Any, key: Any, amount: int | float = 1) -> Any:
        """Adds to a number, and returns the sum; a missing one is zero."""
        return await _run(self._tx.add(table, key, amount))

    async def append(self, table: Any, value: Any) -> int:
        """Writes a value behind the last record, and returns its key."""
        key: int = await _run(self._tx.append(table, value))
        return key

    async def pop_first(self, table: Any) -> tuple[Any, Any] | None:
        """Removes the first record and returns its key and value; None if there is none."""
        pair: tuple[Any, Any] | None = await _run(self._tx.pop(table, False))
        return pair

    async def pop_last(self, table: Any) -> tuple[Any, Any] | None:
        """Removes the last record and returns its key and value; None if there is none."""
        pair: tuple[Any, Any] | None = await _run(self._tx.pop(table, True))
        return pair

    async def range(
        self,
        table: Any,
        lo: Any = None,
        hi: Any = None,
        *,
        reverse: bool = False,
        inclusive: bool = False,
        limit: int | None = None,
    ) -> list[tuple[Any, Any]]:
        """The records of a range, all of them: they stay as they are until the transaction ends."""
        rows: list[tuple[Any, Any]] = await _run(
            self._tx.range(table, (lo, hi, inclusive), reverse, limit)
        )
        return rows


class Aio:
    """The store for tasks: `Store.aio`."""

    __slots__ = ("_store",)

    def __init__(self, store: Any) -> None:
        self._store = store

    async def write(
        self,
        function: Callable[[AsyncTransaction], Awaitable[_R]],
        /,
        *,
        time: float = 10.0,
        label: str = "",
        level: str = "serializable",
        mode: str | float | None = None,
    ) -> _R:
        """Runs a coroutine function in a transaction until it commits. It is run again after a deadlock."""
        tx = _AsyncTransaction(self._store, time=time, label=label, level=level, mode=mode)
        over = _time.monotonic() + time
        await _run(tx.begin())
        runs = 0
        while True:
            runs += 1
            try:
                result = await _Parts(function, tx)
            except Exception as error:
                failed: Exception = error
            except BaseException:
                tx.drop()
                raise
            else:
                try:
                    await _run(tx.commit())
                    return result
                except Error as error:
                    failed = error
            if not tx.failed:
                if tx.is_open:
                    await _run(tx.roll_back())
                raise failed
            if _time.monotonic() >= over:
                tx.drop()
                text = f"not done by its deadline; the last of {runs} runs: {failed}"
                raise Deadline(text) from failed
            if not tx.restart():
                await _run(tx.begin())
            # The lock may belong to another task of this loop, which must run first.
            await asyncio.sleep(0)

    def transaction(self, **options: Any) -> Callable[..., Any]:
        """A decorator: the coroutine function gets a transaction as its first argument."""

        def decorate(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            @functools.wraps(function)
            async def run(*args: Any, **named: Any) -> Any:
                return await self.write(lambda tx: function(tx, *args, **named), **options)

            return run

        return decorate

    async def sync(self) -> None:
        """Waits until all commits of this process are durable."""
        await _run(_AsyncTransaction(self._store).sync())
