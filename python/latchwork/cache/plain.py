"""The format of plain data: see `latchwork.dumps`."""

from __future__ import annotations

from .. import dumps, loads

__all__ = ["dumps", "loads"]
