"""Runs the tests of diskcache, from its source package on PyPI, with `latchwork.cache` in its place."""

import os
import pathlib
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as xml

import pytest

HERE = pathlib.Path(__file__).parent
VERSION = "5.6.3"
FILES = ["test_core.py", "test_deque.py", "test_fanout.py", "test_index.py", "test_recipes.py"]
TESTS = 179
# The requirement: at least 115 of the 122 tests that do not mention SQLite or files. More tests apply.
PASS = 115


def not_applicable():
    lines = (HERE / "not_applicable.txt").read_text().splitlines()
    rows = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    return dict(rows)


def sources(folder):
    """Fetches the source package of diskcache. The folder in DISKCACHE_SDIST, if set, has it already."""
    given = os.environ.get("DISKCACHE_SDIST")
    where = pathlib.Path(given) if given else folder
    if not given:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "diskcache"]
        done = subprocess.run([*command, f"diskcache=={VERSION}", "--dest", str(folder)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"diskcache {VERSION} could not be fetched: {done.stderr.strip()[-300:]}")
    with tarfile.open(where / f"diskcache-{VERSION}.tar.gz") as archive:
        archive.extractall(folder, filter="data") if hasattr(tarfile, "data_filter") else archive.extractall(folder)
    return folder / f"diskcache-{VERSION}" / "tests"


def run(tests, folder):
    """Runs the tests in a process of their own. Returns the outcome of each: passed, failed or skipped."""
    report = folder / "report.xml"
    # The tests alone: the folder above them has diskcache itself.
    for name in FILES:
        (folder / name).write_bytes((tests / name).read_bytes())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "diskcache_shim", "-p", "no:cacheprovider", "-o", "addopts="]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [*command, "--rootdir", str(folder), "--junitxml", str(report), *FILES],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert report.exists(), done.stdout + done.stderr
    outcomes = {}
    for case in xml.parse(report).iter("testcase"):
        name = f"{case.get('classname').rsplit('.', 1)[-1]}.py::{case.get('name')}"
        failed = case.find("failure") if case.find("failure") is not None else case.find("error")
        outcomes[name] = "passed" if failed is None and case.find("skipped") is None else (
            "skipped" if failed is None else (failed.get("message") or "failed")[:200]
        )
    return outcomes


def test_suite_of_diskcache_passes(tmp_path):
    outcomes = run(sources(tmp_path), tmp_path)
    reasons = not_applicable()
    assert len(outcomes) == TESTS, "the tests of another version"
    assert set(reasons) <= set(outcomes), f"not tests of diskcache: {set(reasons) - set(outcomes)}"
    applicable = {name: outcome for name, outcome in outcomes.items() if name not in reasons}
    failed = {name: outcome for name, outcome in applicable.items() if outcome != "passed"}
    passed = len(applicable) - len(failed)
    print(f"diskcache {VERSION}: {passed} of {len(applicable)} tests that apply pass; {len(reasons)} do not apply:")
    for name, reason in reasons.items():
        print(f"  {name}: {reason}; {'passes' if outcomes[name] == 'passed' else 'fails'}")
    for name, outcome in failed.items():
        print(f"FAILED {name}: {outcome}")
    assert passed >= PASS
    assert not failed
    # A test that passes must not be in the list.
    assert [name for name in reasons if outcomes[name] == "passed"] == []
