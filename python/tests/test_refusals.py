"""Calls that the package refuses, and the texts of their errors."""

from __future__ import annotations

import enum
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any

import pytest

import latchwork
from latchwork.cache import Cache

Script = Callable[..., "subprocess.CompletedProcess[str]"]


class Number(enum.IntEnum):
    ONE = 1


class Word(str, enum.Enum):
    A = "a"


class Text(str):
    pass


class Real(float):
    pass


class Zone(tzinfo):
    def utcoffset(self, at: datetime | None) -> timedelta:
        return timedelta(hours=1)

    def dst(self, at: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, at: datetime | None) -> str:
        return "zone"


@pytest.mark.parametrize("key", [Number.ONE, Word.A, Text("a"), Real(1), bytearray(b"a"), ("a", Number.ONE), ((Word.A,),)])
def test_keys_of_other_classes_are_refused(db: latchwork.Store, key: Any) -> None:
    with pytest.raises(TypeError, match="convert it with"):
        db["t"][key] = 1
    assert len(db["t"]) == 0


@pytest.mark.parametrize("value", [Number.ONE, Word.A, Text("a"), Real(1), bytearray(b"a"), [Number.ONE], {"a": bytearray()}])
def test_values_of_other_classes_are_refused(db: latchwork.Store, value: Any) -> None:
    with pytest.raises(TypeError, match="convert it with"):
        db["t"]["a"] = value
    with pytest.raises(TypeError, match="convert it with"):
        latchwork.dumps(value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("str", Text("a")), ("bytes", bytearray(b"a")), ("u64", Number.ONE), ("u64", True), ("f64", Real(1)), ("f64", 2**53 + 1), ("f64", "1"), ("bool", 1)],
)
def test_typed_tables_convert_nothing(db: latchwork.Store, kind: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        db.table("values", values=kind)["a"] = value
    with pytest.raises((TypeError, ValueError)):
        db.table("keys", keys=kind)[value] = 1
    assert len(db["values"]) == 0 and len(db["keys"]) == 0


def test_time_zones(db: latchwork.Store) -> None:
    t = db["t"]
    for zone in (None, timezone.utc, timezone(timedelta(hours=-3, minutes=-30))):
        at = datetime(2026, 3, 4, 5, 6, 7, 8, tzinfo=zone)
        t["at"] = at
        assert t["at"] == at and t["at"].utcoffset() == at.utcoffset() and type(t["at"].tzinfo) is type(at.tzinfo)
    with pytest.raises(TypeError, match="only the offset would come back"):
        t["at"] = datetime(2026, 3, 4, tzinfo=Zone())


def test_values_of_a_codec_need_it(db: latchwork.Store) -> None:
    codec = latchwork.Codec("reversed", lambda value: value.encode()[::-1], lambda data: data[::-1].decode())
    db.table("t", values=codec)["a"] = "abc"
    for name in (lambda: db["t"], lambda: db.table("t"), lambda: db.write(lambda tx: tx["t"])):
        with pytest.raises(latchwork.TableType, match=r"own\(reversed\).*Codec"):
            name()
    raw = db.table("t", values="bytes")
    assert raw["a"] == b"cba" and raw.value_type == "own(reversed)"
    assert db.table("t", values=codec)["a"] == "abc"
    other = latchwork.Codec("other", str.encode, bytes.decode)
    with pytest.raises(latchwork.TableType, match="reversed"):
        db.table("t", values=other)["a"]
    with pytest.raises(TypeError, match="Codec"):
        db.table("u", values=7)  # type: ignore[arg-type]


def test_names_of_types(db: latchwork.Store) -> None:
    with pytest.raises(ValueError, match=r'"foo" is no type of keys.*"u64"'):
        db.table("t", keys="foo")
    with pytest.raises(ValueError, match="no type of keys"):
        db.table("t", keys="cbor")
    with pytest.raises(ValueError, match="no type of values"):
        db.table("t", values="(str,foo)")
    typed = db.table("t", keys="(str,opt(u16))", values="(bytes(2),f32)")
    with pytest.raises(TypeError, match=r"a key of type str .* of type \(str,opt\(u16\)\)"):
        typed["a"] = (b"ab", 1.0)
    with pytest.raises(TypeError, match=r"a value of type int .* of type \(bytes\(2\),f32\)"):
        typed["a", None] = 1


def test_adding(db: latchwork.Store) -> None:
    t = db["t"]
    t.update({"none": None, "big": 2**200, "flag": True, "list": []})
    for key, what in {"none": "None", "big": "more than 128 bits", "flag": "a bool", "list": "a list"}.items():
        with pytest.raises(TypeError, match=what):
            t.add(key)
        with pytest.raises(TypeError, match=what):
            db.write(lambda tx, key=key: tx.add(t, key))  # type: ignore[misc]
    with pytest.raises(OverflowError, match="128 bits"):
        t.add("n", 2**200)
    with pytest.raises(TypeError, match="Number"):
        t.add("n", Number.ONE)
    with pytest.raises(TypeError, match="float"):
        db.table("ints", values="u8").add("n", 0.5)
    assert "n" not in t and "n" not in db["ints"]


def test_appending_behind_the_largest_key(db: latchwork.Store) -> None:
    t = db["t"]
    t[2**63 - 2] = 0
    assert t.append(1) == 2**63 - 1
    with pytest.raises(OverflowError, match="no next key"):
        t.append(2)
    with pytest.raises(OverflowError, match="no next key"):
        db.write(lambda tx: tx[t].append(2))
    t[2**64] = 3
    with pytest.raises(TypeError, match="64 bits"):
        t.append(4)
    with pytest.raises(TypeError, match="the keys of the table are str"):
        db.table("words", keys="str").append(1)
    assert len(t) == 3


def test_keys_of_errors(db: latchwork.Store) -> None:
    t = db["t"]
    for key in ("a", 7, ("a", (1, None)), b"\x00", 2.5):
        t[key] = 1
        with pytest.raises(latchwork.Exists) as found:
            t.insert(key, 2)
        assert found.value.key == key and type(found.value.key) is type(key) and found.value.table == "t"
        with db.begin() as tx, pytest.raises(latchwork.OwnTransaction) as own:
            tx[t][key] = 2
            t[key] = 3
        assert own.value.key == key


def test_iterators_end_with_what_they_read_through(db: latchwork.Store) -> None:
    t = db["t"]
    t.update((number, number) for number in range(5000))
    tx = db.begin()
    tx[t][-1] = 0
    rows, values = iter(tx[t]), tx[t].values()
    assert next(rows) == -1 and next(values) == 0
    savepoint = tx.savepoint()
    tx.roll_back_to(savepoint)
    assert next(rows) == 0
    tx.roll_back()
    for iterator in (rows, values):
        with pytest.raises(latchwork.Closed):
            next(iterator)
    # A repeated run, and a committed run.
    left: list[Any] = []

    def work(tx: latchwork.Transaction) -> None:
        for iterator in left:
            with pytest.raises(latchwork.Closed):
                next(iterator)
        left.append(tx[t].items())
        if len(left) == 1:
            db.begin(time=0)[t].put(0, tx[t][0])

    with pytest.raises(latchwork.OwnTransaction):
        db.write(work)
    for attempt in db.attempts():
        with attempt as tx:
            work(tx)
    with pytest.raises(latchwork.Closed):
        next(left[-1])
    snapshot = db.snapshot()
    rows = iter(snapshot[t])
    assert next(rows) == 0
    snapshot.close()
    with pytest.raises(latchwork.Closed):
        next(rows)


def test_handles_that_only_read(db: latchwork.Store, tmp_path: Path) -> None:
    db["t"]["a"] = 1
    with latchwork.open(db.path, read_only=True) as reader:
        with pytest.raises(latchwork.ReadOnly, match="without read_only"):
            reader.backup(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_stores_of_another_user(db: latchwork.Store) -> None:
    os.chmod(db.path, 0o755)
    os.chmod(db.path.parent, 0o755)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setegid(4711)
            os.seteuid(4711)
            for read_only in (True, False):
                with pytest.raises(latchwork.OpenFailed, match="belongs to user 0"):
                    latchwork.open(db.path, read_only=read_only)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_few_addresses(folder: Path) -> None:
    source = f"""
import latchwork, resource
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
try:
    latchwork.open({str(folder)!r})
except latchwork.OpenFailed as error:
    assert "small=True" in str(error), error
else:
    raise SystemExit("it was opened")
with latchwork.open({str(folder) + "-small"!r}, small=True) as db:
    db["t"]["a"] = 1
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_tags_of_a_cache(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        with pytest.raises(OverflowError, match="no tag"):
            cache.set("a", 1, tag=2**63)
        for tag in ((1,), True, Number.ONE):
            with pytest.raises(TypeError):
                cache.set("a", 1, tag=tag)
        assert "a" not in cache and cache.check() == []


def test_many_stores(folder: Path) -> None:
    stores: list[latchwork.Store] = []
    try:
        with pytest.raises(latchwork.Full, match="73 at most"):
            for _ in range(100):
                stores.append(latchwork.open(folder, small=True))
        assert len(stores) >= 60
        stores[0]["t"]["a"] = 1
    finally:
        for store in stores:
            store.close()
    with latchwork.open(folder, small=True) as again:
        assert again["t"]["a"] == 1


def test_lengths_of_keys(db: latchwork.Store) -> None:
    t = db["t"]

    def fits(key: Any) -> bool:
        try:
            t[key] = 1
        except latchwork.TooLong:
            return False
        return True

    def size(part: Any) -> int:
        # The longest text that fits next to the part.
        room = next(count for count in range(latchwork.MAX_KEY, 0, -1) if fits(("x" * count, part)))
        return latchwork.MAX_KEY - 2 - room

    # As docs/python.md says.
    sizes = {"": 2, "ab": 4, "ü": 4, "a\0b": 6, b"": 2, b"\0": 4, 0: 1, 1: 2, -1: 2, 255: 2, 256: 3, 2**63 - 1: 9, -(2**63): 9}
    sizes |= {2**64: 11, -(2**127): 18, 2**128 - 1: 18, 2.5: 9, ("ab",): 6, (None,): 4, (): 2}
    assert {part: size(part) for part in sizes} == sizes
    assert (size(None), size(True), size(__import__("uuid").UUID(int=7))) == (1, 1, 17)
