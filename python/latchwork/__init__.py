"""Latchwork: a store that many processes write at the same time, and that survives kill -9 of any of them."""

from ._codecs import Codec, pickled
from ._errors import (
    Closed,
    CommitUnknown,
    Conflict,
    Damaged,
    Deadline,
    Error,
    Exists,
    Forked,
    Full,
    Misuse,
    NoSpace,
    OpenFailed,
    OwnTransaction,
    ReadOnly,
    ReadsUnknown,
    TableType,
    TooLong,
    TooOld,
)
from ._latchwork import (
    MAX_KEY,
    MAX_VALUE,
    Attempts,
    Rows,
    Savepoint,
    Sequence,
    Snapshot,
    SnapshotTable,
    Table,
    Transaction,
    TransactionTable,
    __version__,
    dumps,
    loads,
)
from ._store import Store, open


def __getattr__(name):
    # asyncio is imported by those who use it: it takes longer than all the rest.
    if name in ("Aio", "AsyncTransaction"):
        from . import _aio

        return getattr(_aio, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
