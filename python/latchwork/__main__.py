"""The command `latchwork store`: `python -m latchwork store tables FOLDER`."""

from __future__ import annotations

import signal
import sys

from ._latchwork import _command


def main() -> int:
    """Runs the command with the arguments of the program. Returns its exit code."""
    if sys.argv[1:2] == ["bank"]:
        # It starts its own program again, which is Python here.
        print("latchwork: the wheel has no `bank`: `cargo install --path crates/cli` in a checkout", file=sys.stderr)
        return 2
    # The command has handlers of its own, and Python's would run only after it has returned.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _command(["latchwork", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
