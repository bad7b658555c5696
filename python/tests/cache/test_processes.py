"""Threads and processes at the same time, however they were started."""

import collections
import multiprocessing
import os
import random
import threading

import pytest

import latchwork.cache as lc

COUNT = 300


def count_up(cache, count):
    for _ in range(count):
        cache.incr("count", retry=True)


def produce(cache, name, count):
    for number in range(count):
        cache.push((name, number), prefix="jobs", retry=True)


def consume(cache, queue, wanted):
    found = []
    while len(found) < wanted:
        key, value = cache.pull(prefix="jobs", retry=True)
        if key is not None:
            found.append(value)
    queue.put(found)


def run(processes):
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_cache_goes_to_processes_of_every_start_method(cache, method):
    context = multiprocessing.get_context(method)
    cache["count"] = 0
    run([context.Process(target=count_up, args=(cache, COUNT)) for _ in range(4)])
    assert cache["count"] == 4 * COUNT
    count_up(cache, 1)
    assert cache["count"] == 4 * COUNT + 1


def test_each_value_of_a_queue_is_pulled_once_and_in_order(cache):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    producers = [context.Process(target=produce, args=(cache, name, COUNT)) for name in range(3)]
    consumers = [context.Process(target=consume, args=(cache, queue, COUNT)) for _ in range(3)]
    for process in producers + consumers:
        process.start()
    lists = [queue.get(timeout=120) for _ in consumers]
    for process in producers + consumers:
        process.join()
    assert collections.Counter(item for found in lists for item in found) == collections.Counter(
        (name, number) for name in range(3) for number in range(COUNT)
    )
    for found in lists:
        for name in range(3):
            numbers = [number for producer, number in found if producer == name]
            assert numbers == sorted(numbers)


def stress(folder, seed, threads):
    """Reads back what it has written under keys of its own, among calls on keys that all use."""
    cache = lc.Cache(folder, cull_limit=2, size_limit=300_000)
    own = cache._named("own", 60, lc.Disk, {"eviction_policy": "none"})
    errors = []

    def work(number):
        rng = random.Random(seed * 100 + number)
        mine = {}
        try:
            for step in range(250):
                key = f"{seed}-{number}-{rng.randrange(20)}"
                value = rng.choice([step, str(step), b"x" * rng.randrange(3000), [step, (None, 2.5)], 2**80 + step])
                if rng.random() < 0.6:
                    own.set(key, value, tag=rng.choice([None, "t"]), expire=rng.choice([None, 1000]))
                    mine[key] = value
                else:
                    assert own.pop(key, default="none") == mine.pop(key, "none")
                assert own.get(key, default="none") == mine.get(key, "none")
                common = rng.randrange(50)
                rng.choice([cache.get, cache.delete, cache.incr, cache.pop])(("common", common))
                cache.set(common, b"y" * rng.randrange(10_000), expire=rng.choice([None, 0.01]))
            assert all(own[key] == value for key, value in mine.items())
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]


def test_processes_and_threads_at_the_same_time(tmp_path):
    context = multiprocessing.get_context("spawn")
    folder = tmp_path / "cache"
    run([context.Process(target=stress, args=(folder, seed, 3)) for seed in range(4)])
    with lc.Cache(folder) as cache:
        assert [str(warning.message) for warning in cache.check()] == []
        assert [str(w.message) for w in cache._named("own", 60, lc.Disk, {}).check()] == []
        assert cache.volume() <= 300_000 + 4 * 3 * 10_000


def stress_deque(folder, seed):
    rng = random.Random(seed)
    deque = lc.Deque(directory=folder)
    for step in range(150):
        choice = rng.randrange(6)
        try:
            if choice == 0:
                deque.append(step)
            elif choice == 1:
                deque.appendleft(step)
            elif choice == 2:
                deque.pop()
            elif choice == 3:
                deque.popleft()
            elif choice == 4:
                deque.rotate(rng.randrange(-3, 4))
            else:
                deque[rng.randrange(max(1, len(deque)))] = step
        except IndexError:
            pass


def stress_index(folder, seed):
    rng = random.Random(seed)
    index = lc.Index(folder)
    for step in range(150):
        key = rng.randrange(20)
        choice = rng.randrange(6)
        try:
            if choice == 0:
                index[key] = step
            elif choice == 1:
                del index[key]
            elif choice == 2:
                index.popitem(rng.random() < 0.5)
            elif choice == 3:
                index.setdefault(key, step)
            elif choice == 4:
                list(index.items())
            else:
                index.pop(key)
        except KeyError:
            pass


@pytest.mark.parametrize("work, kind", [(stress_deque, lc.Deque), (stress_index, lc.Index)])
def test_deques_and_indexes_of_many_processes(tmp_path, work, kind):
    context = multiprocessing.get_context("fork")
    run([context.Process(target=work, args=(tmp_path / "folder", seed)) for seed in range(4)])
    result = kind(directory=tmp_path / "folder") if kind is lc.Deque else kind(tmp_path / "folder")
    assert len(list(result)) == len(result)
    assert [str(warning.message) for warning in result.cache.check()] == []


def test_a_fork_in_a_block_leaves_the_block_to_the_parent(cache):
    with cache.transact():
        cache["a"] = 1
        child = os.fork()
        if child == 0:
            try:
                cache["a"]
            except Exception as error:
                os._exit(7 if type(error).__name__ == "Forked" else 8)
            os._exit(9)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert cache["a"] == 1


def transfer(folder, seed):
    rng = random.Random(seed)
    cache = lc.Cache(folder)
    for _ in range(60):
        one, other = rng.sample(range(4), 2)
        with cache.transact(retry=True):
            cache[one] = cache[one] - 1
            cache[other] = cache[other] + 1


def test_blocks_of_many_processes_are_serial(cache):
    for number in range(4):
        cache[number] = 100
    context = multiprocessing.get_context("fork")
    run([context.Process(target=transfer, args=(cache.directory, seed)) for seed in range(4)])
    assert sum(cache[number] for number in range(4)) == 400


def hold(cache, lock, kind, out):
    for _ in range(20):
        with lock:
            inside = cache.incr("inside", retry=True)
            out.append(inside)
            cache.decr("inside", retry=True)


@pytest.mark.parametrize("make, most", [(lc.Lock, 1), (lc.RLock, 1), (lambda c, k: lc.BoundedSemaphore(c, k, 2), 2)])
def test_locks_keep_others_out(cache, make, most):
    out = []
    threads = [threading.Thread(target=hold, args=(cache, make(cache, "lock"), make, out)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(out) == 80
    assert max(out) <= most


def average(folder):
    averager = lc.Averager(lc.Cache(folder), "average")
    for number in range(100):
        averager.add(number)


def test_an_average_of_many_processes(cache):
    context = multiprocessing.get_context("fork")
    run([context.Process(target=average, args=(cache.directory,)) for _ in range(4)])
    assert lc.Averager(cache, "average").get() == 49.5
