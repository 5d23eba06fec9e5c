"""Tables, once for the page, for CSV and for LaTeX."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from goalward.stats import Interval


@dataclass(frozen=True)
class Cell:
    """What a table shows at one place."""

    text: str
    value: float | None = None  # what it is sorted by and what CSV holds; None: the text
    bounds: tuple[float, float] | None = None  # of an interval
    kind: str = ""  # `better`, `level`, `worse`; or `timing`, which no two runs have in common


@dataclass(frozen=True)
class Table:
    """A table with a name that its files take."""

    name: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numbers: frozenset[int] = frozenset()  # the columns that hold numbers

    def to_csv(self) -> str:
        """Returns the table with plain numbers; an interval takes three columns."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        wide = [any(row[i].bounds for row in self.rows) for i in range(len(self.head))]
        head = [[name, f"{name} low", f"{name} high"] if w else [name] for name, w in zip(self.head, wide, strict=True)]
        writer.writerow(itertools.chain.from_iterable(head))
        for row in self.rows:
            cells = [_in_csv(cell, is_wide=w) for cell, w in zip(row, wide, strict=True)]
            writer.writerow(itertools.chain.from_iterable(cells))
        return text.getvalue()

    def to_latex(self) -> str:
        """Returns a `tabular` with the rules of booktabs."""
        columns = "".join("r" if i in self.numbers else "l" for i in range(len(self.head)))
        lines = [[_latex(name) for name in self.head], *([_latex(cell.text) for cell in row] for row in self.rows)]
        head, *body = (" & ".join(line) + r" \\" for line in lines)
        return "\n".join(
            [
                rf"\begin{{tabular}}{{{columns}}}",
                r"\toprule",
                head,
                r"\midrule",
                *body,
                r"\bottomrule",
                r"\end{tabular}",
                "",
            ]
        )


def counted(count: int, what: str) -> str:
    """Returns a number of things in words.

    >>> counted(1, "run"), counted(2, "run")
    ('1 run', '2 runs')
    """
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def with_interval(found: Interval) -> Cell:
    """Returns an estimate with its bounds behind it."""
    text = f"{found.estimate:.3f} [{found.low:.3f}, {found.high:.3f}]"
    return Cell(text, float(found.estimate), (float(found.low), float(found.high)))


def number(value: float, form: str = ",.0f") -> Cell:
    """Returns a number that sorts as one."""
    return Cell(format(value, form), int(value) if float(value).is_integer() else value)


def _in_csv(cell: Cell, *, is_wide: bool) -> list[Any]:
    first = cell.text if cell.value is None else cell.value
    return [first, *(cell.bounds or ("", ""))] if is_wide else [first]


def timing(value: float, form: str = ",.0f") -> Cell:
    """Returns a number that another run of the same would not repeat."""
    return Cell(format(value, form), value, kind="timing")


_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
}


def _latex(text: str) -> str:
    r"""Returns text in which nothing has a meaning to LaTeX.

    >>> print(_latex("5m_vs_6m & 100 %"))
    5m\_vs\_6m \& 100 \%
    """
    return "".join(_LATEX.get(c, c) for c in " ".join(text.split()) if c.isprintable())
