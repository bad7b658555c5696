"""Times of `get`, `set` and `delete` by several processes: latchwork.cache and diskcache, one after the other, in rounds.

The mix is that of diskcache's benchmark_core: 100 keys, 90 % get, 9 % set, 1 % delete, values of up to 600 bytes.

    python bench/cache_core.py --processes 1 8 --operations 20000 --rounds 3
"""

import argparse
import collections
import json
import multiprocessing
import os
import random
import shutil
import tempfile
import time

import diskcache

import latchwork.cache

KEYS = 100
WARM_UP = 1000
SUBJECTS = {
    "latchwork.cache.Cache": (latchwork.cache.Cache, {}),
    "diskcache.Cache": (diskcache.Cache, {}),
    "latchwork.cache.FanoutCache": (latchwork.cache.FanoutCache, {"shards": 8, "timeout": 1.0}),
    "diskcache.FanoutCache": (diskcache.FanoutCache, {"shards": 8, "timeout": 1.0}),
}


def work(subject, folder, number, operations, start, pipe):
    """One process of the benchmark. Sends the times of each operation in ns."""
    kind, options = SUBJECTS[subject]
    cache = kind(folder, **options)
    rng = random.Random(number)
    times = collections.defaultdict(list)
    clock = time.perf_counter_ns
    start.wait()
    for count in range(operations):
        key = b"%d" % rng.randrange(KEYS)
        value = b"%d" % count * rng.randrange(1, 100)
        choice = rng.random()
        if choice < 0.9:
            call, args = "get", (key,)
        elif choice < 0.99:
            call, args = "set", (key, value)
        else:
            call, args = "delete", (key,)
        method = getattr(cache, call)
        before = clock()
        method(*args)
        took = clock() - before
        if count >= min(WARM_UP, operations // 10):
            times[call].append(took)
    pipe.send(times)


def run(subject, processes, operations):
    folder = tempfile.mkdtemp(prefix="bench-cache-")
    try:
        kind, options = SUBJECTS[subject]
        with kind(folder, **options) as cache:
            for number in range(KEYS):
                cache.set(b"%d" % number, b"%d" % number)
        context = multiprocessing.get_context("fork")
        start = context.Barrier(processes + 1)
        workers, pipes = [], []
        for number in range(processes):
            receive, send = context.Pipe(False)
            pipes.append(receive)
            workers.append(context.Process(target=work, args=(subject, folder, number, operations, start, send)))
        for worker in workers:
            worker.start()
        start.wait()
        begin = time.perf_counter()
        times = collections.defaultdict(list)
        for pipe in pipes:
            for call, some in pipe.recv().items():
                times[call] += some
        wall = time.perf_counter() - begin
        for worker in workers:
            worker.join()
        with kind(folder, **options) as cache:
            assert cache.check() == [] if subject.startswith("latchwork") else True
        return wall, {call: sorted(some) for call, some in times.items()}
    finally:
        shutil.rmtree(folder)


def percentile(times, share):
    return times[min(len(times) - 1, int(len(times) * share))]


def text(ns):
    for unit, size in (("s ", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:8.2f} {unit}"
    return f"{ns:8.0f} ns"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--operations", type=int, default=20_000, help="of each process")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--subjects", nargs="+", default=["latchwork.cache.Cache", "diskcache.Cache"])
    parser.add_argument("--json", action="store_true", help="one row of JSON for each line of the table")
    args = parser.parse_args()
    for processes in args.processes:
        found = {subject: [] for subject in args.subjects}
        for _ in range(args.rounds):
            for subject in args.subjects:
                found[subject].append(run(subject, processes, args.operations))
        if not args.json:
            print(f"\n{processes} processes, {args.operations} operations each; medians of {args.rounds} rounds, the most of all")
            print(f"{'':28} {'':8} {'p50':>11} {'p90':>11} {'p99':>11} {'most':>11} {'op/s':>9}")
        for subject, rounds in found.items():
            for call in ("get", "set", "delete"):
                middle = len(rounds) // 2
                values = [
                    sorted(percentile(times[call], share) for _, times in rounds)[middle] for share in (0.5, 0.9, 0.99)
                ]
                most = max(times[call][-1] for _, times in rounds)
                rate = processes * args.operations / sorted(wall for wall, _ in rounds)[middle]
                if args.json:
                    row = {"bench": "cache_core", "subject": subject, "call": call, "procs": processes}
                    row |= {"p50_ns": values[0], "p90_ns": values[1], "p99_ns": values[2], "max_ns": most}
                    row |= {"ops_per_s": round(rate), "runs": args.rounds, "load": os.getloadavg()[0]}
                    print(json.dumps(row))
                else:
                    cells = " ".join(text(value) for value in [*values, most])
                    print(f"{subject:28} {call:8} {cells} {rate:9.0f}")


if __name__ == "__main__":
    main()
