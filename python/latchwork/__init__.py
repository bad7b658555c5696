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
)
from ._store import Store, open
