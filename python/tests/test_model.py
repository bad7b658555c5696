"""Models: tables against a dict, and transactions against their serial order."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import threading
import uuid
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import latchwork

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
# No -0.0: it is another key than 0.0.
floats = st.floats(allow_nan=False).map(lambda number: number + 0.0)
parts = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**127), 2**128 - 1), floats, text, st.binary(max_size=8), st.uuids()
)
keys = st.recursive(parts, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)
values = st.recursive(
    st.one_of(parts, st.integers(), st.datetimes(), st.dates()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(text, inner, max_size=3)
    ),
    max_leaves=6,
)
few = st.integers(0, 6)

ORDER = (type(None), bytes, str, tuple, int, float, bool, uuid.UUID)


def order(key: Any) -> Any:
    """Returns the sort key of a key: its type, then its value."""
    if isinstance(key, tuple) and len(key) > 1:
        return [order_of(part) for part in key]
    return [order_of(key)]


def order_of(part: Any) -> Any:
    place = ORDER.index(type(part))
    match part:
        case None:
            return (place, 0)
        case tuple():
            return (place, [order_of(inner) for inner in part])
        case str():
            return (place, part.encode())
        case uuid.UUID():
            return (place, part.bytes)
        case _:
            return (place, part)


@settings(deadline=None, max_examples=300)
@given(values)
def test_values_are_what_they_were(value: Any) -> None:
    found = latchwork.loads(latchwork.dumps(value))
    assert found == value and repr(found) == repr(value)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=40))
def test_any_bytes_are_a_value_or_an_error(junk: bytes) -> None:
    try:
        value = latchwork.loads(junk)
    except (ValueError, TypeError):
        return
    repr(value)


class Folder:
    """A store for each run of a machine."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="lw-py-", dir="/dev/shm")
        self.db = latchwork.open(f"{self.path}/store", mode="none", small=True)

    def end(self) -> None:
        self.db.close()
        shutil.rmtree(self.path, ignore_errors=True)


class TableIsADict(RuleBasedStateMachine):
    """Each call on a table does what it does on a dict that is in order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Folder()
        self.table = self.folder.db["t"]
        self.model: dict[Any, tuple[Any, Any]] = {}

    def teardown(self) -> None:
        self.folder.end()

    @staticmethod
    def name(key: Any) -> str:
        """Keys that are equal in Python and are not the same here: 1, 1.0 and True."""
        return repr(order(key))

    def sorted(self) -> list[tuple[Any, Any]]:
        return sorted(self.model.values(), key=lambda pair: order(pair[0]))

    @rule(key=keys, value=values)
    def put(self, key: Any, value: Any) -> None:
        self.table[key] = value
        self.model[self.name(key)] = (key, value)

    @rule(key=keys, value=few)
    def setdefault(self, key: Any, value: int) -> None:
        expected = self.model.setdefault(self.name(key), (key, value))
        assert self.table.setdefault(key, value) == expected[1]

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if not self.model:
            return
        key, value = self.model.pop(data.draw(st.sampled_from(sorted(self.model))))
        assert self.table.pop(key) == value and not self.table.remove(key)

    @rule(pairs=st.lists(st.tuples(few, few), max_size=4))
    def update(self, pairs: list[tuple[int, int]]) -> None:
        self.table.update(pairs)
        self.model.update((self.name(key), (key, value)) for key, value in pairs)

    @rule(back=st.booleans())
    def pop_end(self, back: bool) -> None:
        pairs = self.sorted()
        expected = pairs[-1 if back else 0] if pairs else None
        found = self.table.pop_last() if back else self.table.pop_first()
        assert found == expected
        if expected:
            del self.model[self.name(expected[0])]

    @rule(lo=keys, hi=keys, back=st.booleans(), inclusive=st.booleans(), limit=st.none() | few)
    def range(self, lo: Any, hi: Any, back: bool, inclusive: bool, limit: int | None) -> None:
        def inside(key: Any) -> bool:
            # None is no bound.
            above = lo is None or order(key) >= order(lo)
            return above and (hi is None or order(key) < order(hi) or inclusive and order(key) == order(hi))

        expected = [pair for pair in self.sorted() if inside(pair[0])]
        assert self.table.count(lo, hi, inclusive=inclusive) == len(expected)
        expected = expected[::-1] if back else expected
        found = list(self.table.range(lo, hi, reverse=back, inclusive=inclusive, limit=limit))
        assert found == expected[:limit]

    @rule(pairs=st.lists(st.tuples(few, few), max_size=4), fails=st.booleans())
    def transaction(self, pairs: list[tuple[int, int]], fails: bool) -> None:
        def body(tx: latchwork.Transaction) -> list[Any]:
            for key, value in pairs:
                tx[self.table][key] = value
            if fails:
                raise ZeroDivisionError
            return list(tx[self.table].keys())

        try:
            found = self.folder.db.write(body)
        except ZeroDivisionError:
            return
        self.model.update((self.name(key), (key, value)) for key, value in pairs)
        assert found == [key for key, _ in self.sorted()]

    @rule()
    def reopen(self) -> None:
        self.folder.db.close()
        self.folder.db = latchwork.open(self.folder.db.path, mode="none", small=True)
        self.table = self.folder.db["t"]

    @invariant()
    def same(self) -> None:
        pairs = self.sorted()
        assert list(self.table.items()) == pairs
        assert list(self.table.items(reverse=True)) == pairs[::-1]
        assert len(self.table) == len(pairs) and bool(self.table) == bool(pairs)
        assert self.table.first() == (pairs[0] if pairs else None)


TestTableIsADict = TableIsADict.TestCase
TestTableIsADict.settings = settings(
    deadline=None, max_examples=40, stateful_step_count=25, suppress_health_check=list(HealthCheck)
)


class Serial(RuleBasedStateMachine):
    """Transactions of several threads: their reads are those of some serial order."""

    @initialize()
    def begin(self) -> None:
        self.folder = Folder()

    def teardown(self) -> None:
        self.folder.end()

    @rule(
        plans=st.lists(
            st.lists(st.tuples(st.sampled_from(["read", "write", "count", "add"]), st.integers(0, 2)), min_size=1, max_size=4),
            min_size=2,
            max_size=4,
        )
    )
    def run(self, plans: list[list[tuple[str, int]]]) -> None:
        db, table = self.folder.db, self.folder.db["t"]
        table.clear()
        results: list[list[Any]] = [[] for _ in plans]

        def work(number: int) -> None:
            def body(tx: latchwork.Transaction) -> list[Any]:
                return [step(tx[table], number, *operation) for operation in plans[number]]

            results[number] = db.write(body)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(plans))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        end = dict(table)
        for serial in itertools.permutations(range(len(plans))):
            state: Any = Model()
            if all(results[one] == [step(state, one, *operation) for operation in plans[one]] for one in serial) and state == end:
                return
        raise AssertionError(f"no serial order: {plans} {results} {end}")


class Model(dict[int, int]):
    """A table for the serial order."""

    def add(self, key: int, amount: int = 1) -> int:
        self[key] = self.get(key, 0) + amount
        return self[key]


def step(table: Any, number: int, operation: str, key: int) -> Any:
    match operation:
        case "read":
            return table.get(key)
        case "write":
            table[key] = 100 * number
            return None
        case "count":
            return len(table)
        case _:
            return table.add(key, number + 1)


TestSerial = Serial.TestCase
TestSerial.settings = settings(
    deadline=None, max_examples=20, stateful_step_count=5, suppress_health_check=list(HealthCheck)
)
