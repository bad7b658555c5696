"""Times of `incr` of one key by several processes: latchwork.cache and diskcache, one after the other, in rounds.

    python bench/cache_incr.py --processes 8 --operations 1000 --rounds 3
"""

import argparse
import json
import multiprocessing
import os
import shutil
import tempfile
import time

import diskcache
from cache_core import percentile, text

import latchwork.cache

SUBJECTS = {"latchwork.cache.Cache": latchwork.cache.Cache, "diskcache.Cache": diskcache.Cache}


def work(subject, folder, operations, start, pipe):
    cache = SUBJECTS[subject](folder)
    clock = time.perf_counter_ns
    cache.get(b"key")
    start.wait()
    times = []
    for _ in range(operations):
        before = clock()
        cache.incr(b"key", retry=True)
        times.append(clock() - before)
    pipe.send(times)


def run(subject, processes, operations):
    folder = tempfile.mkdtemp(prefix="bench-cache-")
    try:
        SUBJECTS[subject](folder).close()
        context = multiprocessing.get_context("fork")
        start = context.Barrier(processes + 1)
        workers, pipes = [], []
        for _ in range(processes):
            receive, send = context.Pipe(False)
            pipes.append(receive)
            workers.append(context.Process(target=work, args=(subject, folder, operations, start, send)))
        for worker in workers:
            worker.start()
        start.wait()
        begin = time.perf_counter()
        times = sorted(some for pipe in pipes for some in pipe.recv())
        wall = time.perf_counter() - begin
        for worker in workers:
            worker.join()
        with SUBJECTS[subject](folder) as cache:
            assert cache.get(b"key") == processes * operations, "increments were lost or doubled"
        return wall, times
    finally:
        shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[8])
    parser.add_argument("--operations", type=int, default=1000, help="of each process")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one row of JSON for each line of the table")
    args = parser.parse_args()
    for processes in args.processes:
        found = {subject: [] for subject in SUBJECTS}
        for _ in range(args.rounds):
            for subject in SUBJECTS:
                found[subject].append(run(subject, processes, args.operations))
        if not args.json:
            print(f"\n{processes} processes, {args.operations} increments each; medians of {args.rounds} rounds, the most of all")
            print(f"{'':28} {'p50':>11} {'p90':>11} {'p99':>11} {'most':>11} {'op/s':>9}")
        for subject, rounds in found.items():
            middle = len(rounds) // 2
            values = [sorted(percentile(times, share) for _, times in rounds)[middle] for share in (0.5, 0.9, 0.99)]
            most = max(times[-1] for _, times in rounds)
            rate = processes * args.operations / sorted(wall for wall, _ in rounds)[middle]
            if args.json:
                row = {"bench": "cache_incr", "subject": subject, "procs": processes, "p50_ns": values[0]}
                row |= {"p90_ns": values[1], "p99_ns": values[2], "max_ns": most, "ops_per_s": round(rate)}
                print(json.dumps(row | {"runs": args.rounds, "load": os.getloadavg()[0]}))
            else:
                print(f"{subject:28} {' '.join(text(value) for value in [*values, most])} {rate:9.0f}")


if __name__ == "__main__":
    main()
