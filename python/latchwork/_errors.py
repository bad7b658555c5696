"""Errors. `retryable` of a class is true if the same transaction may succeed when it is run again."""

from __future__ import annotations

import errno as _errno


class Error(Exception):
    """The base class of all errors of a store."""

    retryable: bool = False
    table: str | None = None
    key: object = None


class Conflict(Error):
    """A lock was not granted: a deadlock, or the end of the time that the call may wait. Run the transaction again."""


class TooOld(Error):
    """A snapshot or a transaction was open for too long. Run it again."""


class Deadline(Error, TimeoutError):
    """A transaction was run until the end of its time without success. Nothing was written."""


class OwnTransaction(Error):
    """The lock is held by another transaction of the same thread, which would wait for itself."""


class Exists(Error):
    """There is a record with this key already."""


class TooLong(Error, ValueError):
    """A key has more than 1,890 bytes, a table's name more than 900, or a value more than 1 GiB."""


class TableType(Error, TypeError):
    """The table has other types than the call names, or bytes that are no value of its type."""


class NoSpace(Error, OSError):
    """There is no room on the disk or in shared memory. Nothing was written."""


class Damaged(Error):
    """A part of what is stored is damaged: restore a backup, or use `latchwork store salvage`."""


class CommitUnknown(Error):
    """The transaction is committed; whether it survives a crash of the machine is not known. Do not run it again."""


class ReadsUnknown(Error):
    """Data that the transaction has read may be lost in a crash of the machine. Do not act on it."""


class Full(Error):
    """All thread slots of the store are held: end threads, transactions or snapshots, or open it with more
    `threads`. Or the process has 73 stores open."""


class ReadOnly(Error):
    """The store was opened with `read_only`."""


class OpenFailed(Error, OSError):
    """The store cannot be opened: the text says why, and what to do."""


class Closed(Error):
    """The store, transaction or snapshot is closed."""


class Forked(Error):
    """The transaction or snapshot belongs to the parent of this process."""


class Misuse(Error, RuntimeError):
    """A call that makes no sense: a transaction in two threads at the same time, for example."""


def _make(name: str, text: str, no_space: bool, **facts: object) -> Error:
    kind = globals()[name]
    made: Error = kind(_errno.ENOSPC, text) if no_space and issubclass(kind, OSError) else kind(text)
    for fact, value in facts.items():
        if value is not None:
            setattr(made, fact, value)
    return made
