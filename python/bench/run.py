"""Compares the package with its rivals, in one run, in turns.

Each row is the median of the rounds of both sides; `spread` is (largest - smallest) / median, in
percent, ours/theirs. A row says `noisy` if a spread is above 15 %. Times are of one call."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import many
import single


@dataclass
class Row:
    """A figure: the values of both sides, and the goal."""

    name: str
    unit: str
    rival: str
    ours: list[float]
    theirs: list[float] = field(default_factory=list)
    # The ratio that is the goal: of times at most, of rates at least.
    goal: float | None = None
    more_is_better: bool = False
    note: str = ""

    def ratio(self) -> float | None:
        if not self.theirs:
            return None
        return statistics.median(self.ours) / statistics.median(self.theirs)

    def reached(self) -> bool | None:
        found = self.ratio() if self.theirs else statistics.median(self.ours)
        if self.goal is None or found is None:
            return None
        return found >= self.goal if self.more_is_better else found <= self.goal

    def spread(self) -> list[float]:
        return [
            100 * (max(of) - min(of)) / statistics.median(of) if statistics.median(of) else 0.0
            for of in (self.ours, self.theirs)
            if of
        ]

    def json(self) -> str:
        said = {
            "bench": "python", "row": self.name, "subject": "latchwork", "rival": self.rival, "unit": self.unit,
            "ours": statistics.median(self.ours), "theirs": statistics.median(self.theirs) if self.theirs else None,
            "ratio": self.ratio(), "goal": self.goal, "reached": self.reached(), "spread": self.spread(),
            "runs": len(self.ours), "noisy": max(self.spread()) > 15, "note": self.note,
        }
        return json.dumps(said)

    def text(self) -> str:
        ours = f"{statistics.median(self.ours):,.2f}"
        theirs = f"{statistics.median(self.theirs):,.2f}" if self.theirs else "-"
        ratio = self.ratio()
        sign = ">=" if self.more_is_better else "<="
        goal = f"{sign} {self.goal:g}{'x' if self.theirs else ''}" if self.goal is not None else "-"
        state = {True: "yes", False: "NO", None: "-"}[self.reached()]
        spread = "/".join(f"{one:.0f}" for one in self.spread())
        noisy = " noisy" if max(self.spread()) > 15 else ""
        return (
            f"{self.name:<34} {ours:>12} {theirs:>12} {self.unit:<6} {f'{ratio:.2f}x' if ratio else '-':>8} {goal:>8} "
            f"{state:<4} {spread:>8}{noisy}  {self.rival}{'; ' + self.note if self.note else ''}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work: the figures mean little")
    parser.add_argument("--only", metavar="NAMES", help=f"some of {', '.join(BENCHES)}, with commas")
    parser.add_argument("--json", action="store_true", help="a JSON line for each row")
    parser.add_argument("--wheel", type=Path, help="the wheel whose size is a row")
    parser.add_argument("--folder", help="where the stores lie (default: /dev/shm, which is memory)")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(BENCHES)
    if unknown := set(names) - set(BENCHES):
        parser.error(f"no benchmark {', '.join(unknown)}")
    base = arguments.folder or ("/dev/shm" if os.path.isdir("/dev/shm") else None)
    if not arguments.json:
        print(f"load average {os.getloadavg()[0]:.1f}, {len(os.sched_getaffinity(0))} processors")
        print(f"{'row':<34} {'latchwork':>12} {'rival':>12} {'unit':<6} {'ratio':>8} {'goal':>8} {'ok':<4} {'spread %':>8}  rival")
    missed = 0
    for name in names:
        with tempfile.TemporaryDirectory(prefix="lw-bench-", dir=base) as folder:
            rows = BENCHES[name](Path(folder), arguments)
            for row in rows:
                made = Row(**row)
                print(made.json() if arguments.json else made.text(), flush=True)
                missed += made.reached() is False
    return 1 if missed else 0


BENCHES = {
    "get": single.get,
    "put": single.put,
    "scan": single.scan,
    "gil": single.gil,
    "counters": many.counters,
    "queue": many.queue,
    "import": single.imports,
    "wheel": single.wheel,
}

if __name__ == "__main__":
    sys.exit(main())
