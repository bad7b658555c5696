"""Keys of memoized functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def full_name(function: Callable[..., Any]) -> str:
    """The module and the qualified name of a function."""
    return f"{function.__module__}.{function.__qualname__}"


def args_to_key(
    base: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any], typed: bool, ignore: Any
) -> tuple[Any, ...]:
    """The key of a call: base, positions, None, names with values in order; and the names of the types if `typed`."""
    places = [value for place, value in enumerate(args) if place not in ignore]
    names = [(name, kwargs[name]) for name in sorted(kwargs) if name not in ignore]
    key = (*base, *places, None)
    for pair in names:
        key += pair
    if typed:
        key += tuple(_type_name(value) for value in places)
        key += tuple(_type_name(value) for _, value in names)
    return key


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
