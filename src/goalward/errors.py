"""What checks of input share: exceptions whose text is meant for the user, parts of their sentences, plain numbers."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

_MOST_NAMES = 50  # that a message lists
_MOST_DIGITS = 4000  # Python reads no number that has many more


class GoalwardError(Exception):
    """A failure that a sentence explains; the command line prints it without a traceback."""

    exit_code = 1


class UserError(GoalwardError):
    """The input is wrong: the message says what was expected, what was found and what to change."""

    exit_code = 2


class PartnerLost(GoalwardError):
    """Another process of the run is gone, so that there is nobody left to take leave of."""


def unknown_name(what: str, name: str, known: Iterable[str]) -> UserError:
    """Returns the error for a name outside `known`, with the closest known names first."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    listed = f"Known: {', '.join(names[:_MOST_NAMES]) or 'none'}{more}."
    hint = f"Did you mean {' or '.join(close)}?" if close else listed
    return UserError(f"Unknown {what} '{name}'. {hint}")


def counted(number: int, noun: str) -> str:
    """Returns a number of things in words: 1 seed, 2 seeds."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(items: Iterable[Any], last: str) -> str:
    """Returns things in words: 1, 2 and 3."""
    return f" {last} ".join(", ".join(map(str, items)).rsplit(", ", 1))


def plain_number(value: Any) -> Any:
    """Returns a scalar of NumPy or JAX as Python's own number, and anything else as it is."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def whole_number(text: str) -> int | None:
    """Returns the number that some digits are, None for anything else.

    >>> whole_number("012"), whole_number("-1"), whole_number("two")
    (12, None, None)
    """
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def brief(error: BaseException) -> str:
    """Returns an exception's type and the first line of its message, without a full stop."""
    first_line, _, _ = str(error).strip().partition("\n")
    return f"{type(error).__name__}: {first_line.rstrip('.') or 'no message'}"
