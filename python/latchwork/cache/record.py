"""An entry as the store holds it.

```text
flags 1  row 8  expire 8  used 8  reads 4  indexed 8  rank 8  region 1  units 4 | tag | body, or its place
```

`row` is the number of the entry: the time of its insertion in ns, so rows are in order of insertion. `expire` is
when the entry expires (infinity: never). `used` says when it was last stored or, if the policy asks for
it, read, and `reads` how often it was read. `indexed`, `rank` and `region` say where the entry is in the expiry index
and in the eviction index. Both places are lower bounds: an entry that is stored again with a later time keeps its
place, and is moved when the place's turn comes. `units` is what the counts have for the entry: it is updated at
once when the value grows, and when the value has shrunk to a quarter. So most changes of a value are one record.

A body is a value: mode, type, bytes. One of more than `INLINE` bytes lies in the table of long bodies under a number
of its own, so that a change of the header does not write it again.
"""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

from .. import Damaged
from .constants import MODE_RAW

HEAD = struct.Struct("<BQddIddBI")
EXPIRE = struct.Struct("<BQd")
PLACE = struct.Struct("<QQ")

HAS_TAG, LONG, TOUCHED = 1, 2, 4
NEVER = math.inf
# Regions of the eviction index: entries that culling has not checked yet, entries that a policy has moved (the code of
# the policy), and entries that are not in the index.
FRESH, OUTSIDE = 0, 255
INLINE = 1024
# The unit of the counts, in bytes.
UNIT = 256

_INT, _FLOAT = struct.Struct("<q"), struct.Struct("<d")
_LENGTH = struct.Struct("<H")


class Entry(NamedTuple):
    """The parts of an entry, in the order of the header."""

    flags: int
    row: int
    expire: float
    used: float
    reads: int
    indexed: float
    rank: float
    region: int
    units: int
    tag: Any
    body: bytes

    def pack(self) -> bytes:
        flags = self.flags & ~HAS_TAG
        tag = b""
        if self.tag is not None:
            flags |= HAS_TAG
            data = pack_plain(self.tag)
            tag = _LENGTH.pack(len(data)) + data
        return HEAD.pack(flags, *self[1:9]) + tag + self.body

    def place(self) -> tuple[int, int]:
        """The number of a long body, and its length."""
        number, length = PLACE.unpack(self.body)
        return number, length

    def size(self) -> int:
        """The bytes of the entry in the volume of its cache."""
        return self.units * UNIT

    def recounted(self, key: Any) -> Entry:
        """The entry with the units that it is to count for after its body has changed."""
        units = units_of(key, self.place()[1] if self.flags & LONG else len(self.body))
        return self if fits(units, self.units) else self._replace(units=units)


def units_of(key: Any, body: int) -> int:
    """The bytes of an entry with a body of so many: header, body, the key in the table and in an index; in units."""
    kind = type(key)
    keys = 2 * len(key) if kind is bytes or kind is str else 64
    return -(-(HEAD.size + body + keys) // UNIT)


def fits(units: int, counted: int) -> bool:
    """Whether an entry of `units` units may keep the count `counted`."""
    return units <= counted <= 4 * units


def unpack(record: bytes) -> Entry:
    """Reads an entry. Raises `Damaged` for bytes that are none."""
    try:
        head = HEAD.unpack_from(record)
        at, tag = HEAD.size, None
        if head[0] & HAS_TAG:
            (length,) = _LENGTH.unpack_from(record, at)
            at += 2 + length
            tag = unpack_plain(record[at - length : at])
    except (struct.error, UnicodeDecodeError) as error:
        raise damaged(error) from error
    if head[0] & LONG and len(record) != at + PLACE.size:
        raise damaged("no place of its body")
    return Entry(*head, tag, record[at:])  # type: ignore[call-arg]


def damaged(why: object) -> Damaged:
    return Damaged(f"an entry of the cache cannot be read ({why}): check(fix=True) removes it")


def pack_plain(value: Any) -> bytes:
    """Packs bytes, str, an int of 64 bits, a float, or None."""
    kind = type(value)
    if isinstance(value, bytes):
        return b"b" + value
    if isinstance(value, str):
        return b"s" + value.encode("utf-8", "surrogatepass")
    if kind is int:
        if not -(2**63) <= value < 2**63:
            raise OverflowError("an int of more than 64 bits is no tag")
        return b"i" + _INT.pack(value)
    if kind is float:
        return b"f" + _FLOAT.pack(value)
    if value is None:
        return b"n"
    raise TypeError(f"an object of type {kind.__name__} is not bytes, str, int, float or None")


def unpack_plain(data: bytes) -> Any:
    kind = data[:1]
    if kind == b"b":
        return data[1:]
    if kind == b"s":
        return data[1:].decode("utf-8", "surrogatepass")
    if kind == b"i":
        return _INT.unpack_from(data, 1)[0]
    if kind == b"f":
        return _FLOAT.unpack_from(data, 1)[0]
    if kind == b"n":
        return None
    raise damaged(f"unknown type {kind!r}")


# How the body of bytes begins that are stored as themselves.
RAW_BYTES = bytes((MODE_RAW,)) + b"b"


def pack_body(mode: int, value: Any) -> bytes:
    return bytes((mode,)) + pack_plain(value)


def unpack_body(body: bytes) -> tuple[int, Any]:
    try:
        return body[0], unpack_plain(body[1:])
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise damaged(error) from error
