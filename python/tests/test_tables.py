"""Tables as mappings, keys, values and types."""

from __future__ import annotations

import datetime
import pickle
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

import latchwork

KEYS = [
    None, b"", b"a\0b", b"\xff", "", "a", "a\0b", "ä", (), ("a",), (("a",),), ("a", 1), ("a", ("b", None)), (1, 2, 3),
    -(2**127), -(2**64), -(2**63) - 1, -(2**63), -256, -1, 0, 1, 255, 2**63, 2**64, 2**127, 2**128 - 1,
    float("-inf"), -1.5, 0.0, 1e300, float("inf"), False, True, uuid.UUID(int=0), uuid.UUID(int=2**128 - 1),
]
VALUES = [
    None, True, False, 0, -1, 2**63, -(2**64), 2**64, 2**512, -(2**512), 1.5, float("inf"), b"", b"x" * 70000, "", "ä\0", [], [1, [2]],
    {}, {"a": {1: None}, (1, 2): b""}, (), (1, (2,)), set(), {1, "a"}, frozenset({1}), uuid.UUID(int=7),
    datetime.datetime(2026, 11, 30, 1, 2, 3, 4), datetime.date(1, 1, 1),
    datetime.datetime(2026, 11, 30, tzinfo=datetime.timezone(datetime.timedelta(hours=5, minutes=30))),
]


def test_mapping(db: latchwork.Store) -> None:
    t = db["fruit"]
    assert not t and len(t) == 0 and t.first() is None and t.last() is None and list(t) == []
    t["pear"] = 3
    t.put("fig", 1)
    t.update({"apple": 2, "plum": None})
    assert t["pear"] == 3 and t.get("none") is None and t.get("none", 7) == 7 and "fig" in t and "none" not in t
    with pytest.raises(KeyError, match="none"):
        t["none"]
    assert list(t) == ["apple", "fig", "pear", "plum"] == list(t.keys())
    assert dict(t) == dict(t.items()) == {"apple": 2, "fig": 1, "pear": 3, "plum": None}
    assert list(t.values(reverse=True)) == [None, 3, 1, 2]
    assert list(t.range("b", "pear")) == [("fig", 1)]
    assert list(t.range("b", "pear", inclusive=True, reverse=True)) == [("pear", 3), ("fig", 1)]
    assert list(t.range(limit=1)) == [("apple", 2)] and list(t.range(limit=0)) == []
    assert t.first() == ("apple", 2) and t.last() == ("plum", None) and t.count("b") == 3 and len(t) == 4
    assert t.pop("fig") == 1 and t.pop("fig", None) is None
    with pytest.raises(KeyError):
        t.pop("fig")
    with pytest.raises(KeyError):
        del t["fig"]
    del t["pear"]
    assert t.remove("plum") and not t.remove("plum")
    assert t.setdefault("kiwi", 5) == 5 and t.setdefault("kiwi", 6) == 5
    with pytest.raises(latchwork.Exists) as found:
        t.insert("kiwi", 7)
    assert found.value.table == "fruit" and not found.value.retryable
    t.insert("lime", 1)
    assert t.change("lime", lambda old: old + 1) == 2 and t.change("new", lambda old: [old], "d") == ["d"]
    assert t.popitem() == ("new", ["d"]) and t.pop_first() == ("apple", 2)
    assert t.remove_range("k", "l") == 1
    t.clear()
    assert not t
    with pytest.raises(KeyError):
        t.popitem()
    assert t.pop_first() is None


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_keys_come_back(db: latchwork.Store, key: object) -> None:
    t = db["keys"]
    t[key] = 1
    assert [repr(k) for k in t] == [repr(key)] and t[key] == 1
    assert list(t.range(key, key, inclusive=True)) == [(key, 1)]


def test_keys_are_in_order(db: latchwork.Store) -> None:
    t = db["keys"]
    for key in reversed(KEYS):
        t[key] = repr(key)
    groups = [[k for k in t if type(k) is kind] for kind in (bytes, str, int, float)]
    assert all(group == sorted(group) for group in groups)
    assert len(t) == len(KEYS) and list(reversed(list(t))) == list(t.keys(reverse=True))


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:40])
def test_values_come_back(db: latchwork.Store, value: object) -> None:
    t = db["values"]
    t["k"] = value
    found = t["k"]
    assert found == value and type(found) is type(value)
    assert latchwork.loads(latchwork.dumps(value)) == value


def test_bad_keys_and_values(db: latchwork.Store) -> None:
    t = db["t"]
    for key, kind in [
        (float("nan"), ValueError), ("\ud800", ValueError), (2**128, OverflowError), ([], TypeError), (object(), TypeError),
        (("a", {}), TypeError), ("x" * 2000, latchwork.TooLong),
    ]:
        with pytest.raises(kind):
            t[key] = 1
        with pytest.raises(kind):
            t.get(key)
    deep: list[object] = []
    deep.append(deep)
    for value, kind in [
        (object(), TypeError), ("\ud800", ValueError), (deep, ValueError), (1j, TypeError), (range(3), TypeError), (type, TypeError),
    ]:
        with pytest.raises(kind):
            t["k"] = value
    nested: object = ()
    for _ in range(200):
        nested = (nested,)
    with pytest.raises(ValueError):
        t[nested] = 1
    assert len(t) == 0
    for junk in [b"", b"\x9f", b"\x1c", b"\xff", b"\x82\x01", b"\xc0\x01", b"\x9b" + b"\xff" * 8, b"\x81" * 500]:
        with pytest.raises(ValueError):
            latchwork.loads(junk)
    with pytest.raises(latchwork.TooLong):
        db["n" * 901]["k"] = 1
    with pytest.raises(ValueError):
        list(t.range(limit=-1))


def test_value_above_the_limit(db: latchwork.Store) -> None:
    # The pages of a zeroed bytes object that no one reads take no memory.
    large = bytes(latchwork.MAX_VALUE + 1)
    with pytest.raises(latchwork.TooLong):
        db.table("raw", values="bytes")["k"] = large
    with pytest.raises(ValueError):
        db["t"]["k"] = large
    assert "k" not in db["t"]


def test_types(db: latchwork.Store, folder: object) -> None:
    counts = db.table("counts", keys="(str,u16)", values="i32")
    counts["a", 7] = -3
    assert counts["a", 7] == -3 and list(counts.prefix("a")) == [(("a", 7), -3)] and counts.add(("a", 7), 5) == 2
    for key, kind in [(("a", 65536), OverflowError), (("a", -1), OverflowError), ("a", TypeError), ((1, 1), TypeError)]:
        with pytest.raises(kind):
            counts[key] = 1
    with pytest.raises(OverflowError):
        counts["a", 1] = 2**31
    with pytest.raises(OverflowError):
        counts.add(("a", 7), 2**31)
    assert db.tables()["counts"]["values"] == "i32" and db.tables()["counts"]["keys"] == "(str,u16)"
    # Another process gets the types that are recorded.
    with latchwork.open(db.path) as other:
        found = other["counts"]
        assert found.value_type == "i32" and found["a", 7] == 2
        with pytest.raises(latchwork.TableType):
            other.table("counts", values="str")["a", 1] = "x"
    for of, value in [
        ("str", "ä"), ("bytes", b"\0"), ("u8", 255), ("i128", -(2**127)), ("u128", 2**128 - 1), ("f64", 0.1), ("f32", 0.5), ("bool", True),
        ("opt(u8)", None), ("opt(u8)", 7), ("(str,u8,str)", ("a", 1, "bc")), ("()", None), ("uuid", uuid.UUID(int=5)), ("bytes(3)", b"abc"),
        ("json", {"a": [1, None, "ä"]}),
    ]:
        t = db.table(f"of {of}", values=of)
        t[1] = value
        assert t[1] == value and list(t.values()) == [value], of
    with pytest.raises(TypeError):
        db.table("of str", values="str")[2] = 5


def test_codecs(db: latchwork.Store) -> None:
    t = db.table("texts", values=latchwork.Codec("reversed", lambda text: text[::-1].encode(), lambda found: found.decode()[::-1]))
    t["k"] = "abc"
    assert t["k"] == "abc" and db.snapshot()[t]["k"] == "abc" and t.pop_first() == ("k", "abc")
    with pytest.raises(ValueError, match="unsafe"):
        latchwork.pickled()
    p = db.table("pickled", values=latchwork.pickled(unsafe=True))
    p["k"] = range(3)
    assert p["k"] == range(3) and p.pop("k") == range(3)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        p["k"] = lambda: None
    assert not p

    def fails(_: object) -> bytes:
        raise ZeroDivisionError

    bad = db.table("bad", values=latchwork.Codec("bad", lambda value: value, fails))
    bad["k"] = b"x"
    for call in (lambda: bad["k"], lambda: bad.pop("k"), bad.pop_first, lambda: list(bad.items()), lambda: bad.change("k", lambda _: b"")):
        with pytest.raises(ZeroDivisionError):
            call()
    assert list(bad) == ["k"]
    with pytest.raises(TypeError):
        db.table("bad2", values=latchwork.Codec("bad2", lambda value: value, fails))["k"] = 5


def test_queue(db: latchwork.Store) -> None:
    q = db["queue"]
    assert [q.append(value) for value in "abc"] == [0, 1, 2]
    assert q.pop_first() == (0, "a") and q.append("d") == 3 and q.pop_last() == (3, "d")
    small = db.table("small", keys="u8", values="str")
    small[254] = "a"
    assert small.append("b") == 255
    with pytest.raises(OverflowError, match="largest"):
        small.append("c")
    db["words"]["w"] = 1
    with pytest.raises(TypeError, match="last key is an int"):
        db["words"].append(1)


def test_queue_calls_pass_over_records_of_open_transactions(db: latchwork.Store) -> None:
    q = db["queue"]
    q.update({0: "a", 1: "b", 2: "c"})
    with db.begin() as tx:
        assert tx[q].get_for_update(0) == "a"
        tx[q][3] = "open"
        # From another thread: it would wait for this one.
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(q.append, "d").result() == 4
            assert pool.submit(q.pop_first).result() == (1, "b")
            assert pool.submit(q.pop_last).result() == (4, "d")
    assert list(q.items()) == [(0, "a"), (2, "c"), (3, "open")]


def test_add(db: latchwork.Store) -> None:
    t = db["n"]
    assert t.add("a") == 1 and t.add("a", -5) == -4 and t.add("a", 2**100) == 2**100 - 4 and t.add("f", 0.5) == 0.5 and t.add("f") == 1.5
    t["s"] = "text"
    with pytest.raises(TypeError, match="the value is a str"):
        t.add("s")
    with pytest.raises(OverflowError, match="128 bits"):
        t.add("a", 2**126) and t.add("a", 2**126)
    with pytest.raises(TypeError):
        t.add("a", "1")
    with pytest.raises(TypeError):
        db.table("texts", values="str").add("a")


def test_large_ranges(db: latchwork.Store) -> None:
    t = db["large"]
    t.update((i, i * i) for i in range(20_000))
    assert list(t.items()) == [(i, i * i) for i in range(20_000)]
    assert list(t.keys(reverse=True)) == list(range(19_999, -1, -1))
    assert list(t.range(5000, 15_000, reverse=True, limit=6000)) == [(i, i * i) for i in range(14_999, 8999, -1)]
    rows = t.items()
    assert next(rows) == (0, 0)
    # The iterator's snapshot does not see concurrent writes.
    t.clear()
    assert sum(1 for _ in rows) == 19_999 and len(t) == 0
    t["long"] = b"x" * 3_000_000
    t["long2"] = b"y" * 3_000_000
    assert [len(value) for value in t.values()] == [3_000_000] * 2


def test_handles_are_pickled(db: latchwork.Store) -> None:
    t = db.table("t", values="bytes")
    t["k"] = b"x"
    copy = pickle.loads(pickle.dumps(t))
    assert copy["k"] == b"x" and copy.value_type == "bytes"
    assert pickle.loads(pickle.dumps(db))["t"]["k"] == b"x"


def test_closed_and_refused(folder: object, db: latchwork.Store) -> None:
    t = db["t"]
    t["k"] = 1
    reader = latchwork.open(db.path, read_only=True)
    assert reader["t"]["k"] == 1
    with pytest.raises(latchwork.ReadOnly):
        reader["t"]["k"] = 2
    reader.close()
    with pytest.raises(latchwork.Misuse):
        db.snapshot().get(latchwork.open(db.path)["t"], "k")
    snapshot, rows = db.snapshot(), t.items()
    db.close()
    db.close()
    assert db.closed
    for call in (lambda: t["k"], lambda: db.snapshot(), lambda: t.put("k", 2), lambda: db.begin(), lambda: db.sync()):
        with pytest.raises(latchwork.Closed):
            call()
    # Open snapshots and iterators still work, and keep the store open.
    assert snapshot["t"] if False else snapshot.get(t, "k") == 1
    assert list(rows) == [("k", 1)]
    snapshot.close()
    with pytest.raises(latchwork.Closed):
        snapshot.get(t, "k")
    with pytest.raises(latchwork.OpenFailed):
        latchwork.open("/proc/none/store")
    with pytest.raises(ValueError):
        latchwork.open(db.path, mode="never")


def test_tools(db: latchwork.Store, tmp_path: object) -> None:
    db["t"]["k"] = 1
    with db.begin(label="a label") as tx:
        tx["t"]["k"] = 2
        mine = [p for p in db.processes() if p["pid"] == __import__("os").getpid()]
        assert any(of["label"] == "a label" for p in mine for of in p["transactions"])
        assert any(lock["table"] == "t" and lock["held"] for lock in db.locks())
    assert db.stats()["commits_total"] >= 2
    copied = db.backup(f"{tmp_path}/copy")
    assert copied["pages"] > 0
    with latchwork.open(f"{tmp_path}/copy") as copy:
        assert copy["t"]["k"] == 2
    numbers = db.sequence("numbers", batch=10)
    assert [next(numbers) for _ in range(3)] == [1, 2, 3]
    db.checkpoint()
    db.sync()
