"""A cache that is open: its settings, its transactions, and how it converts keys and values."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from .. import Conflict, Deadline, Error, OwnTransaction, TooOld, Transaction
from . import checking
from .constants import ENOVAL, EVICTION_POLICY, UNKNOWN, Timeout
from .disk import Disk, PickleDisk, directory_of, is_usual
from .record import RAW_BYTES, pack_body, unpack_body
from .space import ANY_KEY, Home, Space, lengthen, shorten, stored_settings
from .work import Work

if TYPE_CHECKING:
    from typing_extensions import Self

_R = TypeVar("_R")
# Above all integers that are stored as themselves.
ALL = 2**63
# Errors that say that a lock was not free, or that the transaction must be run again.
BUSY = (Conflict, Deadline, OwnTransaction, TooOld)


class _Open:
    """A `transact` block of a thread."""

    __slots__ = ("depth", "work")

    def __init__(self, work: Work) -> None:
        self.work = work
        self.depth = 1


class Base:
    """Opens a cache, keeps its settings, and runs its transactions."""

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        timeout: float = 60,
        disk: type[Disk] = Disk,
        *,
        unsafe: bool = False,
        mode: Any = "none",
        **settings: Any,
    ) -> None:
        """Opens a cache, which is created if it does not exist.

        `timeout` is the time in seconds for which a call waits for locks. `unsafe` allows pickle, in this handle.
        `mode` is when a write returns, as for `latchwork.open`. With the default, writes survive the death of every
        process, but the last ones may be lost in a crash of the machine. The first handle of a process that opens the
        store sets the mode. `settings` are those of `DEFAULT_SETTINGS`, and are stored.
        """
        if not (isinstance(disk, type) and issubclass(disk, Disk)):
            raise ValueError("disk must be a subclass of latchwork.cache.Disk")
        if unsafe and disk is Disk:
            disk = PickleDisk
        if directory is None:
            directory = tempfile.mkdtemp(prefix="latchwork-cache-")
        self._setup(directory_of(directory), "", timeout, disk, mode, settings)

    def _setup(
        self, directory: str, name: str, timeout: float, disk: type[Disk], mode: Any, settings: dict[str, Any]
    ) -> None:
        self._directory = directory
        self._name = name
        self._timeout = timeout
        self._mode = mode
        self._blocks: dict[int, _Open] = {}
        # The store is closed when no cache has it any more.
        self._home: Home | None = None
        self._space: Space | None = None
        _make_folder(directory)
        space = self._opened()
        stored = stored_settings(space)
        changed = {key: value for key, value in settings.items() if stored.get(key, ENOVAL) != value}
        if "eviction_policy" in changed:
            policy_of(changed["eviction_policy"])
        stored.update(changed)
        options = {key[5:]: value for key, value in stored.items() if key.startswith("disk_")}
        self._disk = disk(directory, **options)
        # The disk, if it converts keys and values in the usual way: then the usual cases do not ask it.
        self._usual = self._disk if is_usual(disk) else None
        for key, value in stored.items():
            self._set_setting(key, value)
        for key, value in changed.items():
            space.settings.put(key, value)

    def _named(self, name: str, timeout: float, disk: type[Disk], settings: dict[str, Any]) -> Self:
        """Another cache in the same store."""
        other = type(self).__new__(type(self))
        other._setup(self._directory, name, timeout, disk, self._mode, settings)
        return other

    statistics: int
    tag_index: int
    eviction_policy: str
    size_limit: int
    cull_limit: int
    disk_min_file_size: int
    disk_pickle_protocol: int

    @property
    def directory(self) -> str:
        """The folder of the cache."""
        return self._directory

    @property
    def timeout(self) -> float:
        """How long a call waits for locks, in seconds."""
        return self._timeout

    @property
    def disk(self) -> Disk:
        """The converter of keys and values."""
        return self._disk

    def _opened(self) -> Space:
        space = self._space
        if space is None:
            _make_folder(self._directory)
            self._home = Home.at(self._directory, self._mode)
            space = self._space = self._home.space(self._name)
        return space

    def _set_setting(self, key: str, value: Any) -> None:
        if key == "eviction_policy":
            policy = policy_of(value)
            self._policy: int = policy["code"]
            self._on_get: str | None = policy["get"]
        elif key.startswith("disk_"):
            setattr(self._disk, key[5:], value)
        setattr(self, key, value)
        self._notes_reads = bool(getattr(self, "statistics", 0)) or getattr(self, "_on_get", None) is not None

    def reset(self, key: str, value: Any = ENOVAL, update: bool = True) -> Any:
        """Changes a setting here and in the store, or reads it from there if `value` is not given. Returns it.

        The other handles of the cache take up a change when they are opened, or by `reset` without a value.
        Settings that this package does not know are stored and have no effect. Raises `KeyError` if a setting is
        read that does not exist.
        """
        space = self._opened()
        if value is ENOVAL:
            if key in ("count", "size", "hits", "misses"):
                return space.sums()[("count", "size", "hits", "misses").index(key)]
            value = stored_settings(space)[key]
        elif update:
            if key == "eviction_policy":
                policy_of(value)
            self._single(lambda tx: tx.put(space.settings, key, value), retry=True)
            if key == "eviction_policy" and self._policy == 0 and policy_of(value)["code"]:
                self._set_setting(key, value)
                checking.rank_all(self)
        self._set_setting(key, value)
        return value

    def close(self) -> None:
        """Closes this handle. The next call opens it again."""
        self._space = self._home = None

    def __enter__(self) -> Self:
        self._opened()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> Any:
        return self._directory, self._name, self._timeout, type(self._disk), self._mode

    def __setstate__(self, state: Any) -> None:
        directory, name, timeout, disk, mode = state
        self._setup(directory, name, timeout, disk, mode, {})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._directory!r})"

    def _block(self) -> _Open | None:
        """The `transact` block of this thread."""
        return self._blocks.get(threading.get_ident()) if self._blocks else None

    def _single(self, body: Callable[[Transaction], _R], retry: bool) -> _R:
        """Runs a function in a transaction until it commits, or in that of the thread's `transact` block."""
        block = self._block()
        if block is not None:
            try:
                return body(block.work.tx)
            except BUSY as error:
                raise Timeout(str(error)) from error
        store = self._opened().store
        while True:
            try:
                return store.write(body, time=self._timeout, level="read-committed")
            except BUSY as error:
                if not retry:
                    raise Timeout(str(error)) from error

    def _change(self, body: Callable[[Work], _R], retry: bool) -> _R:
        """Runs a function that changes entries in a transaction, and takes note of what that has changed."""
        block = self._block()
        if block is not None:
            try:
                return body(block.work)
            except BUSY as error:
                raise Timeout(str(error)) from error
        space = self._opened()
        size = 0

        def run(tx: Transaction) -> _R:
            nonlocal size
            work = Work(tx, space)
            result = body(work)
            work.finish()
            size = work.size
            return result

        while True:
            try:
                result = space.store.write(run, time=self._timeout, level="read-committed")
                break
            except BUSY as error:
                if not retry:
                    raise Timeout(str(error)) from error
        space.volume += size
        return result

    @contextlib.contextmanager
    def transact(self, retry: bool = False) -> Iterator[None]:
        """A block whose calls on this handle, in this thread, are one transaction.

        Reads in the block lock what they read. One block, push or pull of a cache runs at a time; other calls of other
        threads and processes run concurrently, and wait only for entries that the block has used. Blocks may be nested.

        Raises `Timeout` if the block waits for longer than the cache's `timeout`, or must end to resolve a deadlock;
        then nothing of it was written. Calls that change one entry never cause a deadlock with a block. `retry` repeats the wait at the beginning of the block.
        """
        with self._transact(retry):
            yield

    @contextlib.contextmanager
    def _transact(self, retry: bool = False) -> Iterator[Work]:
        thread = threading.get_ident()
        block = self._blocks.get(thread)
        if block is not None:
            block.depth += 1
            try:
                yield block.work
            finally:
                block.depth -= 1
            return
        space = self._opened()
        work = self._begin(space, retry)
        tx = work.tx
        block = self._blocks[thread] = _Open(work)
        try:
            try:
                yield block.work
            finally:
                del self._blocks[thread]
            block.work.finish()
            tx.commit()
        except BaseException as error:
            with contextlib.suppress(Error):
                tx.roll_back()
            if isinstance(error, BUSY):
                raise Timeout(str(error)) from error
            raise
        space.volume += block.work.size

    def _batch(self, body: Callable[[Work], _R], retry: bool, total: int) -> _R:
        """Runs one transaction of several. Batches of one cache do not run at the same time."""
        while True:
            try:
                with self._transact(retry) as work:
                    return body(work)
            except Timeout as error:
                # A deadlock ends the transaction; one of an enclosing block is not run again here.
                if isinstance(error.__cause__, Conflict) and self._block() is None:
                    continue
                raise Timeout(total) from error

    def _begin(self, space: Space, retry: bool) -> Work:
        while True:
            tx = space.store.begin(time=self._timeout, level="read-committed")
            work = Work(tx, space)
            try:
                work.alone()
                return work
            except BUSY as error:
                tx.roll_back()
                if not retry:
                    raise Timeout(str(error)) from error
            except BaseException:
                tx.roll_back()
                raise

    def _key(self, key: Any) -> tuple[Any, bytes | None]:
        """The key in the table, and the long key that it stands for."""
        if self._usual is self._disk:
            kind = type(key)
            if (kind is bytes or kind is str and key.isascii()) and len(key) <= ANY_KEY or kind is int and -1 < key < ALL:
                return key, None
        db_key, raw = self._disk.put(key)
        return shorten(db_key if raw else (db_key,))

    def _key_of(self, key: Any, space: Space) -> Any:
        """The key that a key in the table stands for."""
        if type(key) is tuple:
            if len(key) == 2:
                key = lengthen(self._long_key(key[1], space))
                return self._disk.get(key[0], False) if type(key) is tuple else self._disk.get(key, True)
            return self._disk.get(key[0], False)
        return self._disk.get(key, True)

    def _long_key(self, digest: bytes, space: Space) -> bytes:
        """What `shorten` made a digest of. Raises `KeyError` if the key was removed."""
        block = self._block()
        found: bytes | None = (space.keys if block is None else block.work.tx[space.keys]).get(digest)
        if found is None:
            raise KeyError(digest)
        return found

    def _body(self, value: Any, read: bool, key: Any = UNKNOWN) -> bytes:
        if type(value) is bytes and self._usual is self._disk and len(value) < self._disk.min_file_size:
            return RAW_BYTES + value
        _, mode, _, stored = self._disk.store(value, read, key=key)
        return pack_body(mode, stored)

    def _value(self, body: bytes, read: bool = False) -> Any:
        if body[:2] == RAW_BYTES and self._usual is self._disk:
            return body[2:]
        mode, stored = unpack_body(body)
        return self._disk.fetch(mode, None, stored, read)


def policy_of(name: str) -> dict[str, Any]:
    """Returns the definition of a policy. Raises `ValueError` for an unknown name."""
    policy = EVICTION_POLICY.get(name)
    if policy is None or "code" not in policy:
        raise ValueError(f"there is no eviction policy {name!r}: the policies are none, least-recently-stored, ..")
    return policy


def _make_folder(directory: str) -> None:
    if os.path.isdir(directory):
        return
    try:
        os.makedirs(directory, 0o755)
    except FileExistsError:
        pass
    except OSError as error:
        raise OSError(error.errno, f"the folder {directory!r} of the cache cannot be created: {error.strerror}") from None
