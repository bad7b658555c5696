from collections.abc import Callable
from os import PathLike
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypedDict, TypeVar
from typing_extensions import Self, Unpack

from ._aio import Aio as Aio, AsyncTransaction as AsyncTransaction
from ._codecs import Codec as Codec, pickled as pickled
from ._errors import (
    Closed as Closed,
    CommitUnknown as CommitUnknown,
    Conflict as Conflict,
    Damaged as Damaged,
    Deadline as Deadline,
    Error as Error,
    Exists as Exists,
    Forked as Forked,
    Full as Full,
    Misuse as Misuse,
    NoSpace as NoSpace,
    OpenFailed as OpenFailed,
    OwnTransaction as OwnTransaction,
    ReadOnly as ReadOnly,
    ReadsUnknown as ReadsUnknown,
    TableType as TableType,
    TooLong as TooLong,
    TooOld as TooOld,
)
from ._latchwork import (
    MAX_KEY as MAX_KEY,
    MAX_VALUE as MAX_VALUE,
    Attempts as Attempts,
    Rows as Rows,
    Savepoint as Savepoint,
    Sequence as Sequence,
    Snapshot as Snapshot,
    SnapshotTable as SnapshotTable,
    Table as Table,
    Transaction as Transaction,
    TransactionTable as TransactionTable,
    _Level,
    _Mode,
    _Store,
    __version__ as __version__,
    dumps as dumps,
    loads as loads,
)

class _Options(TypedDict, total=False):
    time: float
    label: str
    level: _Level
    mode: _Mode | None

_R = TypeVar("_R")
_P = ParamSpec("_P")

class Store(_Store):
    """A store that is open: any thread may use it, and it is pickled as its path."""

    def __init__(
        self,
        path: str | PathLike[str],
        /,
        *,
        mode: _Mode | None = None,
        read_only: bool = False,
        create: bool = True,
        small: bool = False,
        cache: int | None = None,
        cache_max: int | None = None,
        threads: int | None = None,
        log_budget: int | None = None,
        history: int | None = None,
        wait: float | None = None,
    ) -> None: ...
    def transaction(
        self, **options: Unpack[_Options]
    ) -> Callable[[Callable[Concatenate[Transaction, _P], _R]], Callable[_P, _R]]: ...
    @property
    def aio(self) -> Aio: ...
    def tables(self) -> dict[str, dict[str, Any]]: ...
    def stats(self) -> dict[str, Any]: ...
    def processes(self) -> list[dict[str, Any]]: ...
    def locks(self) -> list[dict[str, Any]]: ...
    def backup(self, to: str | PathLike[str], /) -> dict[str, int]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

def open(
    path: str | PathLike[str],
    /,
    *,
    mode: _Mode | None = None,
    read_only: bool = False,
    create: bool = True,
    small: bool = False,
    cache: int | None = None,
    cache_max: int | None = None,
    threads: int | None = None,
    log_budget: int | None = None,
    history: int | None = None,
    wait: float | None = None,
) -> Store: ...
