"""The command `latchwork` of the wheel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import latchwork


def run(*words: object, code: int = 0, text: str | None = None) -> str:
    command = [sys.executable, "-m", "latchwork", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, input=text, timeout=120)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def test_the_commands_for_stores(db: latchwork.Store, tmp_path: Path) -> None:
    db["hits"]["/pear"] = 7
    db.table("typed", keys="(str,u64)", values="i32")["a", 1] = -5
    assert "hits" in run("store", "tables", db.path)
    assert "/pear" in run("store", "scan", db.path, "--table", "hits")
    assert run("store", "get", db.path, "/pear", "--table", "hits").strip() == "7"
    run("store", "put", db.path, "/pear", "8", "--table", "hits")
    assert db["hits"]["/pear"] == 8
    dump = run("store", "dump", db.path)
    assert "/pear" in dump and "typed" in dump
    run("store", "backup", db.path, tmp_path / "copy")
    with latchwork.open(tmp_path / "copy") as copy:
        assert copy["typed"]["a", 1] == -5
    run("store", "load", tmp_path / "loaded", text=dump)
    with latchwork.open(tmp_path / "loaded") as loaded:
        assert loaded["hits"]["/pear"] == 8 and loaded["typed"]["a", 1] == -5
    run("store", "verify", db.path)
    run("store", "stat", db.path)


def test_what_goes_on(db: latchwork.Store) -> None:
    with db.begin(label="a label") as tx:
        tx["t"]["k"] = 1
        assert str(os.getpid()) in run("store", "processes", db.path)
        assert "a label" in run("store", "processes", db.path)
        assert "no transaction waits" in run("store", "locks", db.path)


def test_exit_codes(db: latchwork.Store, tmp_path: Path) -> None:
    assert "Usage" in run("store", "nothing", code=2)
    assert "latchwork" in run("--version") and "store" in run("--help")
    run("store", "get", db.path, "none", "--table", "none", code=1)
    assert "cargo" in run("bank", code=2)
    script = Path(sys.executable).with_name("latchwork")
    if script.exists():
        done = subprocess.run([script, "store", "tables", db.path], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it(db: latchwork.Store, sent: signal.Signals) -> None:
    db["t"]["k"] = 1
    command = [sys.executable, "-m", "latchwork", "store", "top", str(db.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        time.sleep(1)
        start = time.monotonic()
        running.send_signal(sent)
        running.wait(timeout=20)
        assert time.monotonic() - start < 5
