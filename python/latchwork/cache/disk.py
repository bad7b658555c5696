"""How keys and values become what the store holds.

The default holds plain data only: None, bool, int, float, str, bytes, datetime, date, UUID, and lists, tuples
and dicts of these. Reading such a value never runs code. Any other object needs pickle, and pickle needs an
explicit choice, because reading a pickled value runs code that the writer of the value chose.
"""

from __future__ import annotations

import io
import json
import math
import os.path
import pickle
import pickletools
import struct
import zlib
from typing import Any

from .constants import (
    MODE_BINARY,
    MODE_PICKLE,
    MODE_RAW,
    MODE_SAFE,
    UNKNOWN,
)
from .plain import dumps, loads

_LOW, _HIGH = -(2**63), 2**63 - 1
# The first byte of a key that is not stored as itself.
_SAFE_KEY, _PICKLED_KEY = b"\x01", b"\x02"


class Disk:
    """Converts keys and values. Subclasses override `put` with `get`, or `store` with `fetch`.

    `allow_pickle` is False here: an object that is not plain data raises `TypeError`, and reading a pickled
    value raises `ValueError`. `PickleDisk` allows pickle.
    """

    allow_pickle = False

    def __init__(self, directory: str, min_file_size: int = 0, pickle_protocol: int = 0) -> None:
        self._directory = directory
        self.min_file_size = min_file_size
        self.pickle_protocol = pickle_protocol

    def hash(self, key: Any) -> int:
        """Returns a number of 32 bits that is the same in every process."""
        db_key, _ = self.put(key)
        kind = type(db_key)
        if kind is int:
            return int(db_key % 0xFFFFFFFF)
        if kind is str:
            data = db_key.encode("utf-8", "surrogatepass")
        elif kind is bytes:
            data = db_key
        elif kind is float:
            data = struct.pack("!d", db_key)
        else:
            data = repr(db_key).encode()
        return zlib.adler32(data) & 0xFFFFFFFF

    def put(self, key: Any) -> tuple[Any, bool]:
        """Returns the stored form of a key, and whether that is the key itself.

        Raises `TypeError` for a key that needs pickle if that is not allowed, and `ValueError` for NaN.
        """
        kind = type(key)
        if kind is bytes or kind is bool or key is None:
            return key, True
        if kind is str:
            # The store's keys are UTF-8, which has no lone surrogates.
            return (key, True) if _is_utf8(key) else (_SAFE_KEY + dumps(key), False)
        if kind is int and _LOW <= key <= _HIGH:
            return key, True
        if kind is float:
            if math.isnan(key):
                raise ValueError("NaN cannot be a key: it is not equal to itself")
            # As in a dict, 1.0 is the key 1.
            return (int(key), True) if key.is_integer() and abs(key) < 2.0**63 else (key, True)
        try:
            return _SAFE_KEY + dumps(key), False
        except TypeError as error:
            if not self.allow_pickle:
                raise TypeError(f"a key of type {kind.__name__} needs pickle: {_ADVICE}") from error
        data = pickle.dumps(key, protocol=self.pickle_protocol)
        return _PICKLED_KEY + pickletools.optimize(data), False

    def get(self, key: Any, raw: bool) -> Any:
        """Returns the key whose stored form is `key`."""
        if raw:
            return key
        if key[:1] == _SAFE_KEY:
            return loads(key[1:])
        return self._unpickle(key[1:], "key")

    def store(self, value: Any, read: bool, key: Any = UNKNOWN) -> tuple[int, int, None, Any]:
        """Returns the size, mode, file name (always None) and stored form of a value.

        The stored form is bytes, str, float, an int of 64 bits, or None. If `read` is true, `value` is a file
        object in binary mode, which is read to its end.
        """
        kind = type(value)
        if kind is bytes:
            mode = MODE_RAW if len(value) < self.min_file_size else MODE_BINARY
            return len(value), mode, None, value
        if kind is str:
            return len(value), MODE_RAW, None, value
        if kind is float or (kind is int and _LOW <= value <= _HIGH):
            return 8, MODE_RAW, None, value
        if read:
            data = value.read()
            return len(data), MODE_BINARY, None, data
        try:
            data, mode = dumps(value), MODE_SAFE
        except TypeError as error:
            if not self.allow_pickle:
                raise TypeError(f"a value of type {kind.__name__} needs pickle: {_ADVICE}") from error
            data, mode = pickle.dumps(value, protocol=self.pickle_protocol), MODE_PICKLE
        return len(data), mode, None, data

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        """Returns the value whose stored form is `value`; a file object if `read` is true and the value
        was stored from a file or is at least `min_file_size` bytes long."""
        if mode == MODE_RAW:
            return value
        if mode == MODE_BINARY:
            return io.BytesIO(value) if read else value
        if mode == MODE_SAFE:
            return loads(value)
        if mode == MODE_PICKLE:
            return self._unpickle(value, "value")
        raise ValueError(f"a value with mode {mode} was stored by another version of this package")

    def _unpickle(self, data: bytes, what: str) -> Any:
        if not self.allow_pickle:
            raise ValueError(f"the {what} is pickled: {_ADVICE}")
        return pickle.loads(data)

    def filename(self, key: Any = UNKNOWN, value: Any = UNKNOWN) -> tuple[str, str]:
        """Not used: values of all sizes lie in the store. Raises `NotImplementedError`."""
        raise NotImplementedError("values lie in the store, not in files")

    def remove(self, file_path: str) -> None:
        """Not used: values of all sizes lie in the store."""


_ADVICE = "pass unsafe=True or disk=PickleDisk if you trust every writer of this cache"


def _is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class PickleDisk(Disk):
    """Pickles the objects that are not plain data, and reads pickled ones.

    Use it only if you trust every program that can write to the cache's directory: reading a pickled value runs
    code that its writer chose.
    """

    allow_pickle = True


def is_usual(disk: type[Disk]) -> bool:
    """Whether a class converts keys and values as `Disk` does."""
    return all(getattr(disk, name) is getattr(Disk, name) for name in ("put", "get", "store", "fetch"))


class JSONDisk(Disk):
    """Stores keys and values as JSON that is compressed by zlib."""

    def __init__(self, directory: str, compress_level: int = 1, **kwargs: Any) -> None:
        self.compress_level = compress_level
        super().__init__(directory, **kwargs)

    def put(self, key: Any) -> tuple[Any, bool]:
        return super().put(self._pack(key))

    def get(self, key: Any, raw: bool) -> Any:
        return self._unpack(super().get(key, raw))

    def store(self, value: Any, read: bool, key: Any = UNKNOWN) -> tuple[int, int, None, Any]:
        if not read:
            value = self._pack(value)
        return super().store(value, read, key=key)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        data = super().fetch(mode, filename, value, read)
        return data if read else self._unpack(data)

    def _pack(self, value: Any) -> bytes:
        return zlib.compress(json.dumps(value).encode("utf-8"), self.compress_level)

    def _unpack(self, data: bytes) -> Any:
        return json.loads(zlib.decompress(data).decode("utf-8"))


def directory_of(directory: Any) -> str:
    """The path that a cache's `directory` argument names."""
    return str(os.path.expandvars(os.path.expanduser(os.fspath(directory))))
