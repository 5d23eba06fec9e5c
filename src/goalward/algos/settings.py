"""Types for settings: a field's annotation says which values it takes, and `check_fields` enforces it.

A setting that is `Traced` may be a traced value: configurations that differ in such settings alone can train in one
program. A tracer passes unchecked: its values were settings before.
"""

from __future__ import annotations

import dataclasses
import math
import reprlib
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import jax

from goalward.envs.base import LARGEST_COUNT
from goalward.errors import UserError, plain_number, unknown_name


@dataclass(frozen=True)
class Range:
    """Values from `low` to `high`; the ends count unless `is_open`."""

    low: float = -math.inf
    high: float = math.inf
    is_open: bool = False

    def __contains__(self, value: float) -> bool:
        return self.low < value < self.high if self.is_open else self.low <= value <= self.high

    def __str__(self) -> str:
        low, high = (f"{end:,}" if isinstance(end, int) else f"{end:g}" for end in (self.low, self.high))
        if self.high == math.inf:
            return f"above {low}" if self.is_open else f"at least {low}"
        return f"between {low} and {high}{', both excluded' if self.is_open else ''}"


@dataclass(frozen=True)
class _MayBeTraced:
    """Marks a setting whose value decides no shape and no branch; None stands for what the environment decides."""


T = TypeVar("T")
Traced = Annotated[T, _MayBeTraced()]
Count = Annotated[int, Range(low=1)]
Width = Annotated[int, Range(low=1, high=LARGEST_COUNT)]  # length of an array's axis
CountOrZero = Annotated[int, Range(low=0)]
Positive = Annotated[float, Range(low=0, is_open=True)]
NonNegative = Annotated[float, Range(low=0)]
Share = Annotated[float, Range(low=0, high=1)]
Fraction = Annotated[float, Range(low=0, high=1, is_open=True)]


def check_fields(config: Any) -> None:
    """Brings a dataclass's fields into their types; raises `UserError` for the first value that is not allowed."""
    for name, hint in field_types(type(config)).items():
        value, kind = getattr(config, name), _without_none(hint)
        if value is None and kind is hint:
            raise UserError(f"{name} must have a value; found None.")
        if value is None or isinstance(value, jax.core.Tracer):
            continue
        value = _coerce(name, value, hint)
        object.__setattr__(config, name, value)
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{name} must be a finite number; found {value}.")
        if isinstance(value, float) and value and not _SMALLEST <= abs(value) <= _LARGEST:
            raise UserError(
                f"{name} must have a size that single precision can hold, {_SMALLEST:.0e} to {_LARGEST:.0e}; "
                f"found {value}."
            )
        if typing.get_origin(kind) is Literal and value not in typing.get_args(kind):
            raise unknown_name(f"value for {name}:", value, typing.get_args(kind))
        for allowed in getattr(kind, "__metadata__", ()):
            if isinstance(allowed, Range) and value not in allowed:
                raise UserError(f"{name} must be {allowed}; found {value}.")


def coerce_fields(config: type[Any], values: typing.Mapping[str, Any], source: str) -> dict[str, Any]:
    """Returns `values` in the types of a dataclass's fields; raises for unknown keys and wrong types."""
    hints = field_types(config)
    for key in values:
        if key not in hints:
            raise unknown_name(f"setting in {source}:", key, hints)
    return {key: _coerce(key, value, hints[key]) for key, value in values.items()}


def field_types(config: type[Any]) -> dict[str, Any]:
    """Returns the annotation of every field that a file or a command line can set."""
    hints = typing.get_type_hints(config, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(config) if not f.metadata.get("python_only")}


def traced_fields(config: type[Any]) -> set[str]:
    """Returns the settings that may be traced values.

    >>> import goalward as gw
    >>> sorted(traced_fields(gw.CPPO))[:3]
    ['actor_lr', 'adam_epsilon', 'adv_std_floor']
    """
    marks = {name: getattr(_without_none(hint), "__metadata__", ()) for name, hint in field_types(config).items()}
    return {name for name, found in marks.items() if _MayBeTraced() in found}


# What training computes in: a smaller number would be zero there, a larger one infinite.
_SMALLEST, _LARGEST = 1e-37, 1e38

_TYPE_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", dict: "a table"}


def _coerce(key: str, value: Any, hint: Any) -> Any:
    kind = _without_none(hint)
    if value is None and kind is not hint:
        return None
    value = plain_number(value)
    if typing.get_origin(kind) is Annotated:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list | tuple) or not all(type(v) is int for v in value):
            raise UserError(f"{key} must be a list of whole numbers such as [64, 64]; found {reprlib.repr(value)}.")
        return tuple(value)
    kind = str if typing.get_origin(kind) is Literal else typing.get_origin(kind) or kind
    if kind is float and type(value) is int:
        return _as_float(key, value)
    if kind is int and type(value) is float and value.is_integer():
        return int(value)
    if type(value) is not kind:
        raise UserError(f"{key} must be {_TYPE_WORDS[kind]}; found {reprlib.repr(value)}.")
    return value


def _as_float(key: str, value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise UserError(f"{key} must be a number that a float can hold; found a larger one.") from None


def _without_none(hint: Any) -> Any:
    """Returns the other half of `X | None`."""
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint
    return next(option for option in typing.get_args(hint) if option is not types.NoneType)
