"""One run of one program: a directory of its own, its processes, and how they end."""
import contextlib
import hashlib
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

SOURCES = Path(__file__).resolve().parent


class Bad(Exception):
    """The program did not come to its end as it should; the text says how."""


class Trial:
    """Commands run in an empty directory, with ../base for files that are made once per
    program, and ../../text and ../../binary as input."""

    def __init__(self, place, prefix, short, timeout):
        self.here, self.base = place / "run", place / "base"
        self.prefix, self.short, self.timeout, self.jobs = prefix, short, timeout, []
        shutil.rmtree(self.here, ignore_errors=True)
        self.here.mkdir(parents=True)
        dropped = ("LD_PRELOAD", "OMP_NUM_THREADS")
        self.env = {name: value for name, value in os.environ.items() if name not in dropped}
        self.env |= {"LC_ALL": "C", "TZ": "UTC", "HOME": str(place)}

    def start(self, command, ours=True, stdin=os.devnull, out=None):
        """Starts a command, split as a shell would split it, in a session of its own. ours=False
        is for clients and helpers: they have glibc's locks on both sides."""
        words, n = shlex.split(command), len(self.jobs)
        printed, complained = self.path(out or f".out{n}"), self.path(f".err{n}")
        with (open(self.path(stdin), "rb") as i, open(printed, "wb") as o,
              open(complained, "wb") as e):
            job = subprocess.Popen((self.prefix if ours else []) + words, stdin=i, stdout=o,
                                   stderr=e, cwd=self.here, env=self.env, start_new_session=True)
        job.started, job.name = time.monotonic(), Path(words[0]).name
        job.printed, job.complained = None if out else printed, complained
        self.jobs.append(job)
        return job

    def finish(self, job, expect=(0,)):
        """Waits for a job; returns its wall time and what it printed."""
        if job.poll() is None and not ends(job, job.started + self.timeout):
            seen = Counter(state for _, state in members(job.pid))
            threads = ", ".join(f"{n} {state}" for state, n in seen.most_common())
            raise Bad(f"{job.name} hung for {self.timeout} s; threads: {threads}")
        seconds, code = time.monotonic() - job.started, job.wait()
        if code not in expect:
            how = signal.Signals(-code).name if code < 0 else f"exit {code}"
            last = job.complained.read_text(errors="replace").strip().splitlines()[-1:]
            raise Bad(": ".join([f"{job.name} ended with {how}", *last]))
        return seconds, job.printed.read_text(errors="replace") if job.printed else ""

    def run(self, command, expect=(0,), **how):
        return self.finish(self.start(command, **how), expect)

    def until(self, ready, job):
        """Waits until a server is ready; a server that ends before that, or never is ready, is Bad."""
        while not ready():
            if job.poll() is not None or time.monotonic() > job.started + self.timeout:
                self.finish(job, expect=())
            time.sleep(0.02)

    def once(self, make):
        """Runs make() in ../base, with glibc's locks, when this program runs for the first time."""
        if not self.base.exists():
            self.base.mkdir()
            here, prefix, self.here, self.prefix = self.here, self.prefix, self.base, []
            try:
                make()
            except Bad:
                shutil.rmtree(self.base)
                raise
            finally:
                self.here, self.prefix = here, prefix

    def cc(self, source, libs):
        file = shlex.quote(str(SOURCES / source))
        self.run(f"cc -O2 -Wall -o {Path(source).stem} {file} {libs}")

    def path(self, name):
        return self.here / name

    def digest(self, name, *more):
        """A short hash of a file, and of texts after it."""
        h = hashlib.sha256(self.path(name).read_bytes())
        for text in more:
            h.update(text.encode())
        return h.hexdigest()[:16]

    def close(self):
        """Kills all processes that still run: hanging ones, and children of ended programs."""
        for job in self.jobs:
            for pid in {pid for pid, _ in members(job.pid)}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            job.wait()


def ends(job, deadline):
    """Waits for a process without polling, which wait() with a timeout does, every 50 ms."""
    fd = os.pidfd_open(job.pid)
    try:
        return select.select([fd], [], [], max(0, deadline - time.monotonic()))[0]
    finally:
        os.close(fd)


def members(session):
    """(process, state of a thread) for every thread in a session."""
    names = {"S": "sleeping", "R": "running", "D": "in disk wait", "Z": "dead", "T": "stopped"}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(fields(stat)[3]) == session:
                for thread in stat.parent.glob("task/*/stat"):
                    state = fields(thread)[0]
                    yield int(stat.parent.name), names.get(state, state)


def fields(stat):
    return stat.read_text(errors="replace").rsplit(")", 1)[1].split()


def found(pattern, text):
    """The last number that a program printed there; a program without a result has failed."""
    hits = re.findall(pattern, text, re.M)
    if not hits:
        raise Bad(f"prints nothing like {pattern!r}")
    return float(hits[-1])
