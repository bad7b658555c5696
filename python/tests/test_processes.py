"""Processes: fork, spawn, forkserver, gunicorn with preload, kill -9, exits with work in hand, signals."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

import latchwork

Script = Callable[..., "subprocess.CompletedProcess[str]"]


def child(work: Callable[[], object]) -> int:
    """Runs something in a forked child; its exit code is 0 if that returns."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException as error:
            print(repr(error), file=sys.stderr)
        finally:
            os._exit(code)
    return pid


def ends(pid: int) -> None:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forked_child_opens_the_store_again(db: latchwork.Store) -> None:
    t = db["t"]
    t["n"] = 0
    t.update((i, i) for i in range(1000))
    tx, snapshot, rows = db.begin(), db.snapshot(), t.items()
    tx[t]["mine"] = 1
    next(rows)
    mine = tx[t]

    def work() -> None:
        for call in (
            lambda: mine["n"], lambda: tx.commit(), lambda: tx.roll_back(), lambda: snapshot.get(t, "n"), lambda: list(rows),
            lambda: tx.restart(), lambda: tx.savepoint(), lambda: snapshot[t].first(),
        ):
            with pytest.raises(latchwork.Forked):
                call()
        for _ in range(100):
            t.add("n")
        with pytest.raises(latchwork.Deadline):
            db.write(lambda own: own[t].put("mine", 2), time=0.05)
        with db.begin() as own:
            own[t].add("n", 1)
        assert next(db.sequence("s")) and db.snapshot()[t]["n"]
        snapshot.close()
        ends(child(lambda: t.add("n")))
        db.close()

    children = [child(work) for _ in range(4)]
    for pid in children:
        ends(pid)
    tx.commit()
    assert t["n"] == 4 * 102 and t["mine"] == 1 and snapshot.get(t, "n") == 0 and len(list(rows)) == 1000


def test_a_fork_beside_threads(db: latchwork.Store) -> None:
    """Other threads are in the middle of calls when the process is forked."""
    t = db["t"]
    stop = threading.Event()
    counted = [0] * 4

    def work(number: int) -> None:
        while not stop.is_set():
            t.add("n")
            counted[number] += 1
            db.write(lambda tx: tx[t].get("n"))
            list(t.range(limit=3))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    children = []
    for _ in range(20):
        children.append(child(lambda: [t.add("n") for _ in range(10)]))
        time.sleep(0.01)
    for pid in children:
        ends(pid)
    stop.set()
    for thread in threads:
        thread.join()
    assert t["n"] == 20 * 10 + sum(counted)


def count_in_process(table: latchwork.Table, store: latchwork.Store, rounds: int) -> None:
    for _ in range(rounds):
        table.add("n")
        store.write(lambda tx: tx.add("t", "m"))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(db: latchwork.Store, method: str) -> None:
    t = db["t"]
    context = multiprocessing.get_context(method)
    processes = [context.Process(target=count_in_process, args=(t, db, 50)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert t["n"] == 200 and t["m"] == 200


COUNTER = """
    import os, sys, latchwork
    db = latchwork.open(sys.argv[1], mode="none", small=True)
    t, own = db["counters"], db["own"]
    me = int(sys.argv[2])
    queue = db["queue"]
    number = own.get(me, 0)
    while True:
        number += 1
        def work(tx):
            # The process's own record, of the same transaction, shows what it did before it was killed.
            tx[t].add(number % 7)
            tx[t].add("all")
            tx[own][me] = number
            taken = tx[queue].pop_first()
            if taken:
                tx.put("done", taken[0], me)
        db.write(work)
        for _ in range(3):
            t.add(("plain", me))
            os.write(1, b".")
"""


@pytest.mark.parametrize("seed", [1])
def test_kill_9(folder: Path, tmp_path: Path, seed: int) -> None:
    """Eight processes count and take from a queue; one of them is killed each 100 ms."""
    rng = random.Random(seed)
    db = latchwork.open(folder, mode="none", small=True)
    jobs = 3000
    db["queue"].update((i, f"job {i}") for i in range(jobs))
    path = tmp_path / "counter.py"
    path.write_text(__import__("textwrap").dedent(COUNTER))

    def start(me: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(path), str(folder), str(me)], stdout=subprocess.PIPE)

    workers = {me: start(me) for me in range(8)}
    said = dict.fromkeys(range(100), 0)
    kills = 0

    def collect(me: int, worker: subprocess.Popen[bytes]) -> None:
        assert worker.stdout
        os.set_blocking(worker.stdout.fileno(), False)
        while True:
            try:
                found = os.read(worker.stdout.fileno(), 1 << 16)
            except BlockingIOError:
                return
            if not found:
                return
            said[me] += len(found)

    over = time.monotonic() + 8
    while time.monotonic() < over:
        time.sleep(0.1)
        for me, worker in workers.items():
            collect(me, worker)
        victim = rng.choice(list(workers))
        workers[victim].kill()
        workers[victim].wait()
        collect(victim, workers[victim])
        kills += 1
        workers[victim] = start(victim)
    for me, worker in workers.items():
        worker.kill()
        worker.wait()
        collect(me, worker)
    with db.snapshot() as snapshot:
        counters, own = snapshot["counters"], snapshot["own"]
        total = sum(own.values())
        assert counters.get("all", 0) == total > 0
        assert sum(counters.get(i, 0) for i in range(7)) == total
        for me in range(8):
            # A call that has returned was counted; a killed call may have been.
            plain = counters.get(("plain", me), 0)
            assert said[me] <= plain <= said[me] + kills + 1
        done, left = list(snapshot["done"]), list(snapshot["queue"])
        # Each job is done once, or waits: first come, first served.
        assert sorted(done + left) == list(range(jobs)) and done == list(range(len(done)))
    assert kills > 20
    assert db["counters"].add("all") == total + 1
    db.close()


def test_an_exit_with_work_in_hand(folder: Path, script: Script) -> None:
    for how in ("pass", "import sys; sys.exit(3)", "import os; os._exit(0)", "raise ZeroDivisionError", "del db, tx"):
        done = script(
            f"""
            import sys, threading, time, latchwork
            db = latchwork.open(sys.argv[1], mode="none")
            t = db["t"]
            t["k"] = 1
            tx = db.begin()
            tx[t]["k"] = 2
            snapshot, rows = db.snapshot(), t.items()
            next(rows)
            def wait():
                t["k"] = 3
            threading.Thread(target=wait, daemon=True).start()
            time.sleep(0.05)
            print("end", flush=True)
            {how}
            """,
            folder,
        )
        assert done.stdout == "end\n" and done.returncode in (0, 1, 3), (how, done)
        assert "panicked" not in done.stderr and "Fatal" not in done.stderr, done.stderr
        with latchwork.open(folder) as db:
            assert db["t"]["k"] in (1, 3)
            db["t"]["k"] = 0


def test_ctrl_c_ends_a_wait(folder: Path, script: Script) -> None:
    done = script(
        """
        import os, signal, sys, threading, time, latchwork
        # A job in the background of a shell inherits that SIGINT is ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        db = latchwork.open(sys.argv[1], mode="none")
        t = db["t"]
        held = []
        def hold():
            tx = db.begin()
            tx[t]["k"] = 1
            held.append(tx)
        thread = threading.Thread(target=hold)
        thread.start(); thread.join()
        def later():
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)
        calls = {
            "call": lambda: t.put("k", 2),
            "write": lambda: db.write(lambda tx: tx[t].put("k", 2)),
            "change": lambda: t.change("k", lambda old: 2),
            "attempts": lambda: attempts(),
            "range": lambda: db.write(lambda tx: list(tx[t].items())),
        }
        def attempts():
            for attempt in db.attempts():
                with attempt as tx:
                    tx[t].put("k", 2)
        for name, call in calls.items():
            threading.Thread(target=later).start()
            start = time.monotonic()
            try:
                call()
            except KeyboardInterrupt:
                print(name, time.monotonic() - start < 5)
        # A handler that does not raise ends no wait.
        seen = []
        signal.signal(signal.SIGUSR1, lambda *_: (seen.append(1), held.pop().commit() if held else None))
        def other():
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGUSR1)
        threading.Thread(target=other).start()
        t["k"] = 5
        print(seen, t["k"], db.locks())
        """,
        folder,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "call True", "write True", "change True", "attempts True", "range True", "[1] 5 []"
    ], done.stdout


def test_asyncio_and_an_exit(folder: Path, script: Script) -> None:
    """The loop is closed while a task waits for a lock."""
    done = script(
        """
        import asyncio, sys, threading, latchwork
        db = latchwork.open(sys.argv[1], mode="none")
        t = db["t"]
        held = []
        def hold():
            tx = db.begin(); tx[t]["k"] = 1; held.append(tx)
        thread = threading.Thread(target=hold); thread.start(); thread.join()
        async def main():
            asyncio.ensure_future(db.aio.write(lambda tx: tx.put(t, "k", 2)))
            await asyncio.sleep(0.05)
        asyncio.run(main())
        held[0].commit()
        print(t["k"], db.locks())
        """,
        folder,
    )
    assert done.returncode == 0 and done.stdout == "1 []\n", done


APP = """
import os
import latchwork

db = latchwork.open(os.environ["STORE"], mode="none", small=True)
hits, queue = db["hits"], db["queue"]
hits["before"] = 1

def app(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/hit":
        def work(tx):
            tx[hits].add(("pid", os.getpid()))
            return tx[hits].add("all")
        body = str(db.write(work))
    elif path == "/push":
        body = str(queue.append(os.getpid()))
    else:
        body = str(hits.get("all", 0))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [body.encode()]
"""


@pytest.mark.parametrize("preload", [True, False])
def test_gunicorn(folder: Path, tmp_path: Path, preload: bool) -> None:
    pytest.importorskip("gunicorn")
    (tmp_path / "app.py").write_text(APP)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "gunicorn", "-w", "4", "-b", f"127.0.0.1:{port}", "app:app"]
    server = subprocess.Popen(
        command + (["--preload"] if preload else []), cwd=tmp_path, env={**os.environ, "STORE": str(folder)},
        stderr=subprocess.DEVNULL,
    )

    def get(path: str) -> str | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as found:
                return str(found.read().decode())
        except OSError:
            return None

    try:
        for _ in range(200):
            if get("/") is not None:
                break
            time.sleep(0.1)
        with latchwork.open(folder) as db:
            answered, killed = 0, set()
            for round in range(300):
                answered += get("/hit") is not None
                get("/push")
                if round % 60 == 30:
                    pids = [key[1] for key, _ in db["hits"].prefix("pid") if key[1] not in killed]
                    victim = random.choice(pids)
                    killed.add(victim)
                    os.kill(victim, signal.SIGKILL)
            hits = db["hits"]
            total = hits["all"]
            # A request whose worker was killed may have been counted, and was not answered.
            assert answered <= total <= answered + len(killed) and answered >= 280
            assert sum(hits.values(("pid", 0), ("pid", 2**31))) == total
            assert len(list(hits.prefix("pid"))) >= 4
            keys = list(db["queue"])
            assert keys == list(range(len(keys))) and len(keys) >= 280
    finally:
        server.terminate()
        server.wait()


def test_json_is_not_needed_at_import(script: Script) -> None:
    done = script(
        """
        import sys
        before = set(sys.modules)
        import latchwork
        after = set(sys.modules) - before
        import json as j
        print(j.dumps(sorted(name for name in after if not name.startswith("latchwork"))))
        """
    )
    slow = {"asyncio", "json", "datetime", "uuid", "typing", "multiprocessing", "pickle"}
    assert not slow & set(json.loads(done.stdout)), done.stdout


