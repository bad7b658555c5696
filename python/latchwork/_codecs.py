"""Formats of values that a program chooses."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Codec:
    """A format of values: two functions, and the name that the store records for the format."""

    __slots__ = ("name", "dumps", "loads")

    def __init__(
        self, name: str, dumps: Callable[[Any], bytes | str], loads: Callable[[bytes], Any]
    ) -> None:
        self.name = name
        self.dumps = dumps
        self.loads = loads


def _dumps(value: Any) -> str:
    import json

    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _loads(value: bytes) -> Any:
    import json

    return json.loads(value)


JSON = Codec("json", _dumps, _loads)


def pickled(*, unsafe: bool = False) -> Codec:
    """Values as `pickle` writes them. Any program that can write the store can run code in the
    programs that read it: `unsafe=True` says that you know."""
    if unsafe is not True:
        raise ValueError("pickle runs code that the writer of a value chooses: say unsafe=True to accept that")
    import pickle

    return Codec("pickle", lambda value: pickle.dumps(value, protocol=4), pickle.loads)
