"""A process that uses a cache until it is killed: `killed_worker.py FOLDER NOTES SEED`.

It notes each increment, push and pull in a file after the call has returned, one line each, written at once. A killed
call is not noted, so at most one operation for each kill.
"""

import os
import random
import sys

from latchwork.cache import FanoutCache


def main(folder, notes, seed):
    random.seed(seed)
    out = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    fanout = FanoutCache(folder, shards=1, timeout=60)
    cache = fanout._shards[0]
    kept = fanout.cache("kept")

    def note(*words):
        os.write(out, (" ".join(map(str, words)) + "\n").encode())

    def change():
        key = random.randrange(60)
        value = b"x" * random.choice([1, 100, 900, 4000])
        cache.set(key, value, expire=random.choice([None, 0.01, 0.5, 10]), tag=random.choice([None, "a", "b"]))

    def block():
        with kept.transact(retry=True):
            # Both or none.
            kept.incr("left")
            kept.incr("right")

    def push():
        word = f"{os.getpid()}-{push.number}"
        push.number += 1
        kept.push(word, prefix="queue", retry=True)
        note("push", word)

    push.number = 0

    def pull():
        key, word = kept.pull(prefix="queue", retry=True)
        if key is not None:
            note("pull", word)

    steps = [
        (change, 30),
        (lambda: cache.get(random.randrange(60)), 20),
        (lambda: note("incr", kept.incr("count", retry=True)), 20),
        (block, 5),
        (push, 12),
        (pull, 12),
        (lambda: cache.delete(random.randrange(60)), 5),
        (lambda: cache.add(random.randrange(60), 1, expire=0.1), 5),
        (lambda: cache.touch(random.randrange(60), random.choice([None, 0.1, 5])), 5),
        (lambda: cache.pop(random.randrange(60)), 3),
        (cache.expire, 1),
        (lambda: cache.evict("a"), 1),
        (cache.cull, 1),
        (lambda: list(cache), 1),
    ]
    calls, weights = zip(*steps)
    while True:
        random.choices(calls, weights)[0]()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException as error:
        import traceback

        with open(sys.argv[2] + ".error", "a") as file:
            traceback.print_exception(error, file=file)
        raise
