"""Keys and values: stored types, refused types, and how pickle is allowed."""

import collections
import datetime
import io
import math
import pickle
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import latchwork
import latchwork.cache as lc
from latchwork.cache.record import Entry, pack_body, unpack, unpack_body

PLAIN = [
    None,
    True,
    False,
    0,
    -1,
    2**63 - 1,
    -(2**63),
    2**63,
    2**512,
    -(2**512),
    1.5,
    math.inf,
    "",
    "text",
    "\0\ud800",
    "x" * 100_000,
    b"",
    b"bytes",
    b"\0" * 100_000,
    (),
    (1, "a", (b"b", None)),
    [1, [2, [3]]],
    {"a": 1, "b": [2.5, {"c": None}]},
    datetime.datetime(2026, 1, 2, 3, 4, 5),
    uuid.UUID(int=7),
]


class Custom:
    def __eq__(self, other):
        return type(other) is Custom

    def __hash__(self):
        return 1


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: repr(value)[:20])
def test_plain_values_come_back_with_their_type(cache, value):
    cache["key"] = value
    found = cache["key"]
    assert found == value
    assert type(found) is type(value)


KEYS = [
    None,
    True,
    0,
    1,
    -5,
    2**62,
    2**70,
    1.5,
    -math.inf,
    "",
    "text",
    "t" * 5000,
    "ä" * 2000,
    b"",
    b"bytes",
    b"\0" * 1500,
    b"b" * 5000,
    (),
    (1, "a", (b"b", None)),
    ("long", "x" * 5000),
]


def test_keys_of_all_types_are_different_keys_and_keep_their_order(cache):
    for number, key in enumerate(KEYS):
        assert key not in cache
        cache[key] = number
    assert list(cache) == KEYS
    assert list(reversed(cache)) == KEYS[::-1]
    assert [type(key) for key in cache] == [type(key) for key in KEYS]
    assert set(cache.iterkeys()) == set(KEYS)
    for number, key in enumerate(KEYS):
        assert cache[key] == number
        assert cache.pop(key) == number
    assert len(cache) == 0
    assert cache.volume() == 0


def test_numbers_that_are_equal_are_one_key(cache):
    cache[1] = "int"
    assert cache[1.0] == "int"
    cache[2.0] = "float"
    assert cache[2] == "float"
    cache[True] = "bool"
    assert cache[1] == "int"


def test_nan_is_no_key(cache):
    with pytest.raises(ValueError, match="NaN"):
        cache[math.nan] = 1


@pytest.mark.parametrize("value", [Custom(), collections.OrderedDict(a=1), range(3), 1 + 2j])
def test_other_objects_need_an_explicit_choice(tmp_path, value):
    safe = lc.Cache(tmp_path)
    with pytest.raises(TypeError, match="unsafe=True"):
        safe["key"] = value
    if value.__hash__ is not None:
        with pytest.raises(TypeError, match="unsafe=True"):
            safe[value] = 1
    assert len(safe) == 0
    unsafe = lc.Cache(tmp_path, unsafe=True)
    unsafe["key"] = value
    assert unsafe["key"] == value


def test_a_pickled_value_is_not_read_without_the_choice(tmp_path):
    class Evil:
        def __reduce__(self):
            return exec, ("import latchwork.cache as lc; lc.ran = True",)

    unsafe = lc.Cache(tmp_path, unsafe=True)
    unsafe["key"] = Evil()
    unsafe[frozenset([Custom])] = 1
    safe = lc.Cache(tmp_path)
    with pytest.raises(ValueError, match="unsafe=True"):
        safe["key"]
    with pytest.raises(ValueError, match="unsafe=True"):
        list(safe)
    assert not hasattr(lc, "ran")
    # It can be removed without being read.
    assert safe.delete("key")


def test_the_choice_is_not_stored(tmp_path):
    lc.Cache(tmp_path, unsafe=True).close()
    assert not lc.Cache(tmp_path).disk.allow_pickle
    assert not pickle.loads(pickle.dumps(lc.Cache(tmp_path))).disk.allow_pickle
    assert pickle.loads(pickle.dumps(lc.Cache(tmp_path, unsafe=True))).disk.allow_pickle


def test_files_are_read_and_returned_as_files(cache):
    cache.set("key", io.BytesIO(b"content"), read=True, expire=60, tag="t")
    reader, expire, tag = cache.get("key", read=True, expire_time=True, tag=True)
    assert reader.read() == b"content"
    assert tag == "t"
    assert isinstance(expire, float)
    assert cache["key"] == b"content"
    with cache.read("key") as reader:
        assert reader.read(3) == b"con"


def test_a_disk_of_json(tmp_path):
    with lc.Cache(tmp_path, disk=lc.JSONDisk, disk_compress_level=6) as cache:
        cache[["a", {"b": 1}]] = {"c": [None, True, 2.5]}
        assert cache[["a", {"b": 1}]] == {"c": [None, True, 2.5]}
        assert list(cache) == [["a", {"b": 1}]]
        assert cache.disk.compress_level == 6


def test_a_disk_must_be_a_class(tmp_path):
    with pytest.raises(ValueError, match="subclass"):
        lc.Cache(tmp_path, disk=lc.Disk("x"))


@given(
    st.one_of(st.binary(), st.text(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.none()),
    st.integers(0, 5),
)
def test_bodies_come_back(value, mode):
    assert unpack_body(pack_body(mode, value)) == (mode, value)


@given(
    st.integers(0, 2**63),
    st.floats(0, 1e12),
    st.integers(0, 2**32 - 1),
    st.one_of(st.none(), st.text(), st.binary(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)),
    st.binary(max_size=50),
)
def test_entries_come_back(row, time, count, tag, body):
    entry = Entry(0, row, time, time, count, math.inf, time, 3, count, tag, body)
    found = unpack(entry.pack())
    assert found._replace(flags=0) == entry


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_an_entry_of_any_bytes_is_read_or_refused(data):
    try:
        entry = unpack(data)
        unpack_body(entry.body)
    except latchwork.Damaged:
        pass


@pytest.mark.parametrize("data", [b"", b"x", b"\xff" * 30, b"\0" * 49, b"\x01" + b"\0" * 60, b"\x02" + b"\0" * 60])
def test_a_damaged_entry_is_an_error_that_says_so(cache, data):
    cache["other"] = 1
    cache._opened().entries.put("key", data)
    for call in (
        lambda: cache.get("key", tag=True),
        lambda: cache.get("key"),
        lambda: cache["key"],
        lambda: cache.incr("key"),
        lambda: cache.pop("key"),
    ):
        try:
            assert call() in (None, 1, (None, None))
        except (latchwork.Damaged, KeyError):
            pass
    assert cache["other"] == 1
    cache._opened().entries.put("key", data)
    assert cache.check()
    assert cache.check(fix=True)
    assert cache.check() == []
    assert cache["other"] == 1
