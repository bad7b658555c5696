"""Full disks and damaged files: each is an exception of its own, and nothing that was committed is lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import latchwork


def test_no_space(folder: Path, script: Callable[..., Any]) -> None:
    done = script(
        """
        import os, resource, sys, latchwork
        db = latchwork.open(sys.argv[1], small=True)
        t = db["t"]
        t["a"] = 1
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, hard))
        count = 0
        try:
            while True:
                t[count] = os.urandom(20_000)
                count += 1
        except latchwork.NoSpace as why:
            print(isinstance(why, OSError), why.errno == 28, why.retryable, count > 10)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        t["b"] = 2
        print(t["a"], t["b"], len(t) == count + 2)
        """,
        folder,
    )
    assert done.returncode == 0 and done.stdout == "True True False True\n1 2 True\n", done


def test_damage(folder: Path) -> None:
    with latchwork.open(folder, small=True) as db:
        db["t"].update((("k", i), b"v" * 100) for i in range(5000))
        db.checkpoint()
    data = folder / "data"
    with open(data, "r+b") as file:
        for at in range(4 * 8192, os.path.getsize(data), 8192):
            file.seek(at + 4000)
            file.write(b"\xde\xad\xbe\xef" * 16)
    with pytest.raises(latchwork.Damaged) as found:
        with latchwork.open(folder, small=True) as db:
            list(db["t"])
    assert not found.value.retryable and "checksum" in str(found.value)


def test_a_folder_that_is_no_store(folder: Path) -> None:
    folder.mkdir()
    (folder / "file").write_text("not a store")
    with pytest.raises(latchwork.OpenFailed):
        latchwork.open(folder)
    with pytest.raises(latchwork.OpenFailed):
        latchwork.open(folder / "none", create=False)
    with pytest.raises(latchwork.OpenFailed):
        latchwork.open(folder / "none", read_only=True)
