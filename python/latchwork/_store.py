"""The Python part of the store, around the compiled one."""

from __future__ import annotations

import atexit
import functools
import os
import weakref

from . import _latchwork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_open: weakref.WeakSet[Any] = weakref.WeakSet()


class Store(_latchwork._Store):
    """A store that is open: any thread may use it, and it is pickled as its path."""

    def __new__(cls, path, /, **options):  # type: ignore[no-untyped-def]
        self = super().__new__(cls, path, **options)
        self._options = options
        _open.add(self)
        return self

    def __init__(self, path, /, **options):  # type: ignore[no-untyped-def]
        pass

    def transaction(self, **options):  # type: ignore[no-untyped-def]
        """A decorator: the function gets a transaction as its first argument, and runs until that commits."""

        def decorate(function):  # type: ignore[no-untyped-def]
            @functools.wraps(function)
            def run(*args, **named):  # type: ignore[no-untyped-def]
                return self.write(lambda tx: function(tx, *args, **named), **options)

            return run

        return decorate

    @property
    def aio(self):  # type: ignore[no-untyped-def]
        """Transactions of tasks of asyncio."""
        from ._aio import Aio

        return Aio(self)

    def tables(self):  # type: ignore[no-untyped-def]
        """The tables, with the types that the store has recorded."""
        return _latchwork._look(self, "tables")

    def stats(self):  # type: ignore[no-untyped-def]
        """Counts and sizes of all processes: the names are those of `latchwork store metrics`."""
        return _latchwork._look(self, "stats")

    def processes(self):  # type: ignore[no-untyped-def]
        """The processes that have the store open, with their transactions."""
        return _latchwork._look(self, "processes")

    def locks(self):  # type: ignore[no-untyped-def]
        """The locks that transactions of all processes hold and wait for."""
        return _latchwork._look(self, "locks")

    def backup(self, to, /):  # type: ignore[no-untyped-def]
        """Copies the store into a folder that does not exist, while others use it."""
        return _latchwork._backup(self, os.fspath(to))

    def __reduce__(self):  # type: ignore[no-untyped-def]
        return (_reopen, (type(self), os.fspath(self.path), self._options))

    def __enter__(self):  # type: ignore[no-untyped-def]
        self._enter()
        return self

    def __exit__(self, kind, error, traceback, /):  # type: ignore[no-untyped-def]
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<latchwork.Store {os.fspath(self.path)!r}, {state}>"


def _reopen(kind, path, options):  # type: ignore[no-untyped-def]
    return kind(path, **options)


def _table(store, name, keys, values, version, mode):  # type: ignore[no-untyped-def]
    return store.table(name, keys=keys, values=values, version=version, mode=mode)


def open(path, /, **options):  # type: ignore[no-untyped-def]
    """Opens the store in a folder: makes it if there is none, joins the processes that have it open,
    or recovers it after a crash. The same call in every process."""
    return Store(path, **options)


@atexit.register
def _close_all() -> None:
    for store in list(_open):
        try:
            store.close()
        except Exception:
            # A process that ends without closing counts as killed: nothing is lost.
            pass
