"""A cache does what a model of it does, whatever the order of the calls."""

import atexit
import shutil
import tempfile
from unittest import mock

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from latchwork.cache import EVICTION_POLICY, Cache
from latchwork.cache.eviction import evict

FOLDER = tempfile.mkdtemp(prefix="latchwork-model-")
# One store for all examples. Each example begins with an empty cache.
CACHE = Cache(FOLDER, cull_limit=0)
atexit.register(shutil.rmtree, FOLDER)

KEYS = st.sampled_from([0, 5, 2.5, "a", "b" * 3000, b"c", (1, "d"), None, True])
VALUES = st.one_of(st.integers(-5, 5), st.sampled_from([b"x" * 3000, "text", None, [1, 2]]))
EXPIRE = st.one_of(st.none(), st.integers(1, 20))
TAGS = st.sampled_from([None, "red", 7])


class Model(RuleBasedStateMachine):
    """The model: key to value, expiry and tag, in the order of insertion."""

    @initialize(policy=st.sampled_from(sorted(EVICTION_POLICY)))
    def open(self, policy):
        self.now = 1_000_000.0
        self.clock = mock.patch("time.time", lambda: self.now)
        self.clock.start()
        self.cache = CACHE
        self.cache.clear()
        self.cache.reset("eviction_policy", policy)
        self.model = {}
        self.block = None

    def teardown(self):
        try:
            if self.block is not None:
                self.end_block(True)
            assert self.cache.check() == []
        finally:
            self.clock.stop()

    def live(self, key):
        return key in self.model and self.model[key][1] > self.now

    def at(self, expire):
        return float("inf") if expire is None else self.now + expire

    @rule(key=KEYS, value=VALUES, expire=EXPIRE, tag=TAGS)
    def set(self, key, value, expire, tag):
        assert self.cache.set(key, value, expire=expire, tag=tag)
        self.model[key] = (value, self.at(expire), tag)

    @rule(key=KEYS, value=VALUES, expire=EXPIRE, tag=TAGS)
    def add(self, key, value, expire, tag):
        expected = not self.live(key)
        assert self.cache.add(key, value, expire=expire, tag=tag) is expected
        if expected:
            self.model[key] = (value, self.at(expire), tag)

    @rule(key=KEYS)
    def get(self, key):
        value, expire, tag = self.model[key] if self.live(key) else (None, None, None)
        expire = None if expire == float("inf") else expire
        assert self.cache.get(key, expire_time=True, tag=True) == (value, expire, tag)
        assert (key in self.cache) is self.live(key)

    @rule(key=KEYS, expire=EXPIRE)
    def touch(self, key, expire):
        assert self.cache.touch(key, expire) is self.live(key)
        if self.live(key):
            value, _, tag = self.model[key]
            self.model[key] = (value, self.at(expire), tag)

    @rule(key=st.sampled_from(["n", "m"]), delta=st.integers(-3, 3))
    def incr(self, key, delta):
        value, expire, tag = self.model[key] if self.live(key) else (0, float("inf"), None)
        assert self.cache.incr(key, delta) == value + delta
        self.model[key] = (value + delta, expire, tag)

    @rule(key=KEYS)
    def delete(self, key):
        assert self.cache.delete(key) is self.live(key)
        if self.live(key):
            del self.model[key]

    @rule(key=KEYS)
    def pop(self, key):
        expected = self.model[key][0] if self.live(key) else "none"
        assert self.cache.pop(key, default="none") == expected
        self.model.pop(key, None)

    @precondition(lambda self: 5 not in self.model)
    @rule(value=VALUES, side=st.sampled_from(["front", "back"]), expire=EXPIRE)
    def push(self, value, side, expire):
        numbers = self.numbers()
        key = self.cache.push(value, side=side, expire=expire)
        if numbers:
            assert key == (numbers[-1] + 1 if side == "back" else numbers[0] - 1)
        self.model[key] = (value, self.at(expire), None)

    def numbers(self):
        return sorted(key for key in self.model if type(key) is int and key > 1000)

    @rule(side=st.sampled_from(["front", "back"]))
    def pull(self, side):
        numbers = self.numbers() if side == "front" else self.numbers()[::-1]
        # 5 is also a key of the queue None.
        if 5 in self.model:
            numbers = [5, *numbers] if side == "front" else [*numbers, 5]
        expected = (None, None)
        for key in numbers:
            value, expire, _ = self.model.pop(key)
            if expire > self.now:
                expected = (key, value)
                break
        assert self.cache.pull(side=side) == expected

    @rule(tag=TAGS)
    def evict(self, tag):
        chosen = [key for key, entry in self.model.items() if entry[2] == tag]
        assert self.cache.evict(tag) == len(chosen)
        for key in chosen:
            del self.model[key]

    @rule()
    def expire(self):
        chosen = [key for key, entry in self.model.items() if entry[1] < self.now]
        assert self.cache.expire() == len(chosen)
        for key in chosen:
            del self.model[key]

    @rule(seconds=st.integers(1, 8))
    def wait(self, seconds):
        self.now += seconds

    @rule(policy=st.sampled_from(sorted(EVICTION_POLICY)))
    def change_policy(self, policy):
        if self.block is None:
            self.cache.reset("eviction_policy", policy)

    @rule()
    def begin_block(self):
        if self.block is None:
            self.block = self.cache.transact()
            self.block.__enter__()
            self.before = dict(self.model)

    @rule(commit=st.booleans())
    def end_block(self, commit):
        if self.block is None:
            return
        block, self.block = self.block, None
        if commit:
            block.__exit__(None, None, None)
        else:
            assert not block.__exit__(KeyError, KeyError(), None)
            self.model = self.before

    @invariant()
    def agrees(self):
        if hasattr(self, "cache"):
            assert list(self.cache) == list(self.model)
            assert len(self.cache) == len(self.model)


TestModel = Model.TestCase
TestModel.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)

CLOCK = [10_000_000.0]
STEP = st.tuples(st.sampled_from(["set", "get", "evict", "delete"]), st.integers(0, 9))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEP, max_size=60), st.sampled_from(sorted(set(EVICTION_POLICY) - {"none"})))
def test_the_entry_with_the_least_rank_is_evicted(steps, policy):
    # The numbers of entries come from the clock, so the clock is not reset between examples.
    now = CLOCK
    rank = {}
    cache = CACHE
    cache.clear()
    cache.reset("eviction_policy", policy)
    with mock.patch("time.time", lambda: now[0]):
        for step, number in steps:
            now[0] += 1
            if step == "set":
                cache[number] = number
                rank[number] = 0 if policy == "least-frequently-used" else now[0]
            elif step == "get":
                found = cache.get(number)
                if found is not None and policy == "least-frequently-used":
                    rank[number] += 1
                elif found is not None and policy == "least-recently-used":
                    rank[number] = now[0]
            elif step == "delete":
                cache.delete(number)
                rank.pop(number, None)
            else:
                wanted = min(number % 4, len(rank))
                assert cache._change(lambda work: evict(work, cache._policy, wanted), False) == wanted
                left = set(cache)
                gone = set(rank) - left
                assert len(gone) == wanted
                if gone and left:
                    assert max(rank[key] for key in gone) <= min(rank[key] for key in left)
                for key in gone:
                    del rank[key]
        assert set(cache) == set(rank)
        assert cache.check() == []
