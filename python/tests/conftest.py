"""Fixtures of the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import latchwork


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for a store, in memory: the tests ask for no disk."""
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    import tempfile

    path = Path(tempfile.mkdtemp(prefix="lw-py-", dir=base))
    yield path / "store"
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def db(folder: Path) -> Iterator[latchwork.Store]:
    store = latchwork.open(folder, mode="none", small=True)
    yield store
    store.close()


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program in a new interpreter."""

    def run(source: str, *arguments: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(source))
        command = [sys.executable, str(path), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout)

    return run
