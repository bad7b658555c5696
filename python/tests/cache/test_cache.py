"""Features of a cache that the tests of diskcache do not cover."""

import contextlib
import pickle
import threading
import time
from unittest import mock

import pytest

import latchwork.cache as lc
from latchwork.cache.core import Cache


@contextlib.contextmanager
def clock(at):
    with mock.patch("time.time", lambda: at):
        yield


def rows(cache):
    """How many records each table has."""
    space = cache._opened()
    names = ("entries", "order", "expiry", "rank", "tags", "bodies", "keys")
    return {name: getattr(space, name).count() for name in names if getattr(space, name).count()}


def test_a_set_writes_what_the_guide_says(cache):
    cache.set("a", 1)
    assert rows(cache) == {"entries": 1, "order": 1, "rank": 1}
    cache.set("b", b"x" * 5000, expire=60, tag="t")
    assert rows(cache) == {"entries": 2, "order": 2, "rank": 2, "expiry": 1, "tags": 1, "bodies": 1}
    cache.set("b", 1)
    assert rows(cache) == {"entries": 2, "order": 2, "rank": 2, "expiry": 1}
    # The row of the time at which it no longer expires is removed when that time comes.
    with clock(time.time() + 100):
        assert cache.expire() == 0
    assert rows(cache) == {"entries": 2, "order": 2, "rank": 2}
    cache.clear()
    assert rows(cache) == {}


def test_a_key_that_expires_later_than_before_keeps_its_place_in_the_index(cache):
    now = time.time()
    with clock(now):
        cache.set("a", 1, expire=10)
        cache.set("a", 2, expire=20)
        cache.set("b", 1, expire=20)
        cache.set("b", 2, expire=10)
    assert [at - now for (at, _), _ in cache._opened().expiry.range()] == [10, 10]
    with clock(now + 15):
        assert cache.expire() == 1
        assert cache["a"] == 2
    assert cache.check() == []
    with clock(now + 25):
        assert cache.expire() == 1
        assert len(cache) == 0


def test_a_value_of_another_size_is_counted_by_the_compiled_part(cache):
    volumes = []
    with mock.patch.object(Cache, "_change", side_effect=AssertionError):
        for size in (1, 1000, 300, 10, 900):
            cache["a"] = b"x" * size
            volumes.append(cache.volume())
            assert cache["a"] == b"x" * size and cache.check() == []
    assert volumes[0] < volumes[1] == volumes[2] > volumes[3] < volumes[4]


def test_handles_of_one_folder_share_a_store(tmp_path):
    one, other = Cache(tmp_path), Cache(tmp_path / ".." / tmp_path.name)
    assert one._opened().store is other._opened().store
    one["key"] = 1
    assert other["key"] == 1
    other.close()
    other.close()
    assert one["key"] == other["key"] == 1


def test_settings_are_stored_and_shared(tmp_path):
    with Cache(tmp_path, size_limit=1000, cull_limit=3, eviction_policy="least-recently-used", sqlite_cache_size=5):
        pass
    with Cache(tmp_path, cull_limit=4) as cache:
        assert (cache.size_limit, cache.cull_limit, cache.eviction_policy) == (1000, 4, "least-recently-used")
        assert cache.reset("sqlite_cache_size") == 5
        with pytest.raises(KeyError):
            cache.reset("no such setting")
        with pytest.raises(ValueError, match="policy"):
            cache.reset("eviction_policy", "newest")
        with pytest.raises(ValueError, match="policy"):
            Cache(tmp_path, eviction_policy="newest")
        assert cache.eviction_policy == "least-recently-used"


def test_a_block_happens_as_a_whole_or_not_at_all(cache):
    cache["a"] = 1
    with cache.transact():
        cache["b"] = cache["a"] + 1
        cache.incr("a", 10)
        assert len(cache) == 2
        assert list(cache) == ["a", "b"]
    assert (cache["a"], cache["b"]) == (11, 2)

    with pytest.raises(ZeroDivisionError), cache.transact():
        cache["c"] = 1
        del cache["a"]
        cache.push(5)
        with cache.transact():
            cache["d"] = 1 / 0
    assert list(cache) == ["a", "b"]
    assert len(cache) == 2
    assert cache.check() == []


def test_other_threads_wait_for_a_block_that_has_read_what_they_change(cache):
    cache["a"] = 1
    seen = []

    def change():
        cache.incr("a")
        seen.append(cache["a"])

    thread = threading.Thread(target=change)
    with cache.transact():
        value = cache["a"]
        thread.start()
        time.sleep(0.05)
        assert seen == []
        cache["a"] = value + 10
    thread.join()
    assert seen == [12]


def test_a_call_that_waits_for_too_long_raises_timeout(tmp_path):
    cache = Cache(tmp_path, timeout=0.05)
    cache["a"] = 1
    errors = []

    def change():
        for call in (lambda: cache.set("a", 2), lambda: cache.incr("a"), lambda: cache.delete("a")):
            try:
                call()
            except lc.Timeout as error:
                errors.append(error)

    with cache.transact():
        cache["a"]
        thread = threading.Thread(target=change)
        thread.start()
        thread.join()
    assert len(errors) == 3
    assert cache["a"] == 1
    with pytest.raises(lc.Timeout), cache.transact():
        thread = threading.Thread(target=lambda: errors.append(_block(cache)))
        thread.start()
        thread.join()
        raise errors[-1]


def _block(cache):
    try:
        with cache.transact():
            return None
    except lc.Timeout as error:
        return error


def test_reads_never_wait(tmp_path):
    cache = Cache(tmp_path, timeout=0.05)
    cache["a"] = 1
    found = []
    with cache.transact():
        cache["a"] = 2
        thread = threading.Thread(target=lambda: found.append((cache["a"], "a" in cache, list(cache), len(cache))))
        thread.start()
        thread.join()
    assert found == [(1, True, ["a"], 1)]


def test_sets_of_a_full_cache_keep_its_size(tmp_path):
    with Cache(tmp_path, size_limit=100_000, cull_limit=2) as cache:
        for number in range(1000):
            cache[number] = b"x" * 1000
            assert cache.volume() <= 100_000 + 2000
        assert len(cache) > 50
        assert list(cache) == list(range(1000))[-len(cache) :]
        assert cache.check() == []


def test_a_policy_may_change_at_any_time(tmp_path):
    with Cache(tmp_path, eviction_policy="none", cull_limit=0) as cache:
        for number in range(250):
            cache[number] = number
        cache.reset("size_limit", 0)
        assert cache.cull() == 0
        for policy in ("least-recently-used", "least-frequently-used", "least-recently-stored"):
            cache.reset("eviction_policy", policy)
            cache[0], cache[10], cache[20]
            cache.reset("size_limit", cache.volume() - 1000)
            assert cache.cull() > 0
            assert cache.check() == []
        cache.reset("size_limit", 0)
        cache.cull()
        assert len(cache) == 0


def test_check_reports_and_repairs_each_kind_of_difference(cache):
    for number in range(20):
        cache.set(number, b"x" * 200 * number, expire=100, tag="even" if number % 2 == 0 else None)
    cache["k" * 3000] = 1
    expected = {key: cache[key] for key in cache}
    space = cache._opened()
    first = {name: next(getattr(space, name).range(limit=1))[0] for name in ("order", "expiry", "rank", "tags")}

    def damage(name):
        table = getattr(space, name)
        if name == "counts":
            table.put(space.stripe(), 7)
        elif name == "entries":
            table.put(99, b"not an entry")
        else:
            table.remove(first[name])

    for name in ("order", "expiry", "rank", "tags", "counts", "entries"):
        assert cache.check() == []
        damage(name)
        found = cache.check()
        assert found, name
        assert len(cache.check(fix=True)) == len(found)
        assert cache.check() == []
        assert {key: cache[key] for key in cache} == expected

    space.bodies.clear()
    space.keys.clear()
    assert cache.check(fix=True)
    assert cache.check() == []
    assert set(cache) == {0, 1, 2, 3, 4, 5}


def test_tags_may_be_long_and_of_any_plain_type(cache):
    long, longer = "t" * 3000, "t" * 3001
    for number, tag in enumerate([long, longer, long, 1, 1.0, b"t", None, "t"]):
        cache.set(number, number, tag=tag)
    assert cache.get(0, tag=True) == (0, long)
    assert cache.evict(long) == 2
    assert cache.evict(longer) == 1
    assert cache.evict(1) == 1
    assert cache.evict(None) == 1
    assert cache.evict("t") == 1
    assert list(cache) == [4, 5]


def test_more_entries_than_a_batch(cache):
    for number in range(350):
        cache.set(number, number, tag="t", expire=1)
    assert cache.evict("t") == 350
    for number in range(350):
        cache.set(number, number, expire=1)
    with clock(time.time() + 2):
        assert cache.expire() == 350
    for number in range(350):
        cache[number] = number
    assert cache.clear() == 350


def test_queues(cache):
    assert cache.pull() == (None, None)
    for number in range(30):
        cache.push(number, prefix="a")
        cache.push(-number, prefix="a", side="front")
    cache.push("other", prefix="a-b")
    assert [cache.pull(prefix="a")[1] for _ in range(30)] == list(range(-29, 1))
    assert [cache.pull(prefix="a", side="back")[1] for _ in range(29)] == list(range(29, 0, -1))
    assert cache.pull(prefix="a") == ("a-500000000000000", 0)
    assert cache.pull(prefix="a") == (None, None)
    assert cache.pull(prefix="a-b") == ("a-b-500000000000000", "other")
    with pytest.raises(ValueError, match="side"):
        cache.push(1, side="top")
    with pytest.raises(ValueError, match="prefix"):
        cache.push(1, prefix="p" * 1000)


def test_a_fanout_cache_holds_caches_by_name(tmp_path):
    fanout = lc.FanoutCache(tmp_path, shards=4)
    fanout["key"] = 1
    inner = fanout.cache("a/b")
    inner["key"] = 2
    deque = fanout.deque("jobs", maxlen=2)
    deque.extend("abc")
    index = fanout.index("jobs")
    index["x"] = 3
    assert (fanout["key"], inner["key"], list(deque), dict(index)) == (1, 2, ["b", "c"], {"x": 3})
    assert fanout.cache("a/b") is inner
    again = pickle.loads(pickle.dumps(fanout))
    assert (len(again), again.cache("a/b")["key"], list(again.deque("jobs"))) == (1, 2, ["b", "c"])
    assert again.size_limit == 2**30 / 4
    assert fanout.check() == inner.check() == index.cache.check() == []
    fanout.close()
    assert fanout["key"] == 1


def test_handles_are_pickled_with_what_they_refer_to(tmp_path):
    deque = lc.Deque("abc", tmp_path / "deque", maxlen=5)
    index = lc.Index(tmp_path / "index", {"a": 1}, b=2)
    assert list(pickle.loads(pickle.dumps(deque))) == ["a", "b", "c"]
    assert pickle.loads(pickle.dumps(deque)).maxlen == 5
    assert pickle.loads(pickle.dumps(index)) == {"a": 1, "b": 2}
    assert pickle.loads(pickle.dumps(index)) == index
    assert deque == ["a", "b", "c"]
    assert deque != ["a"]
    assert lc.ENOVAL is pickle.loads(pickle.dumps(lc.ENOVAL))


def test_throttle_lets_so_many_calls_through(cache):
    now = [1000.0]

    @lc.throttle(cache, 2, 1, time_func=lambda: now[0], sleep_func=lambda delay: now.__setitem__(0, now[0] + delay))
    def call():
        return now[0]

    times = [call() for _ in range(9)]
    assert all(later - earlier >= 1 - 1e-6 for earlier, later in zip(times, times[3:]))
    assert times[-1] - times[0] == pytest.approx(3.5)


def test_barrier_lets_one_thread_in(cache):
    inside, most = [], []

    @lc.barrier(cache, lc.Lock)
    def work():
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.01)
        inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 4


def test_locks_refuse_a_release_too_many(cache):
    lock = lc.RLock(cache, "lock")
    with lock, lock:
        pass
    with pytest.raises(AssertionError):
        lock.release()
    semaphore = lc.BoundedSemaphore(cache, "semaphore", value=2)
    semaphore.acquire()
    semaphore.release()
    with pytest.raises(AssertionError):
        semaphore.release()


def test_memoized_functions_of_plain_data_need_no_pickle(cache):
    calls = []

    @cache.memoize(typed=True, expire=60, tag="f")
    def double(value, *, name="x" * 5000):
        calls.append(value)
        return [value, value]

    assert double(1) == double(1) == [1, 1]
    assert double(1.0) == [1.0, 1.0]
    assert double(1, name="y") == [1, 1]
    assert calls == [1, 1.0, 1]
    assert cache[double.__cache_key__(1)] == [1, 1]
    assert cache.evict("f") == 3
    with pytest.raises(TypeError):
        cache.memoize(double)


def test_statistics_of_all_processes_are_added(cache):
    cache.stats(enable=True)
    cache["a"] = 1
    cache.get("a"), cache.get("b"), cache.get("a")
    cache._opened().counts.add(2, 100)
    assert cache.stats(reset=True) == (102, 1)
    assert cache.stats() == (0, 0)


def test_numbers_of_any_size_are_incremented(cache, tmp_path):
    cache["n"] = 2**63 - 2
    assert [cache.incr("n") for _ in range(3)] == [2**63 - 1, 2**63, 2**63 + 1]
    assert cache.decr("n", 2**70) == 2**63 + 1 - 2**70
    assert cache.incr("f", 0.5, default=1) == 1.5
    assert cache.incr("f") == 2.5
    with pytest.raises(TypeError):
        cache.incr("n", "text")
    assert cache["n"] == 2**63 + 1 - 2**70
    with lc.Cache(tmp_path / "json", disk=lc.JSONDisk) as json:
        json["n"] = 5
        assert json.incr("n") == json["n"] == 6


def test_two_processes_with_one_number_of_an_entry_keep_both(cache):
    cache["a"] = 1
    row = cache._opened().order.last()[0]
    with mock.patch.object(type(cache._opened()), "next_row", side_effect=[row, row, row + 1]):
        cache["b"] = 2
    assert list(cache) == ["a", "b"]
    assert cache.check() == []
