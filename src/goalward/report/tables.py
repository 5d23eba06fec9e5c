"""Tables, once for the page, for CSV and for LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from goalward.stats import Interval


@dataclass(frozen=True)
class Cell:
    """What a table shows at one place."""

    text: str
    value: float | str | None = None  # what it is sorted by and what CSV holds; None: the text
    kind: str = ""  # `better`, `level`, `worse`; or `timing`, which no two runs have in common


@dataclass(frozen=True)
class Table:
    """A table with a name that its files take."""

    name: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numbers: frozenset[int] = frozenset()  # the columns that hold numbers

    def to_csv(self) -> str:
        """Returns the table with plain numbers."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.head)
        writer.writerows([cell.text if cell.value is None else cell.value for cell in row] for row in self.rows)
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


def with_interval(found: Interval) -> Cell:
    """Returns an estimate with its bounds behind it."""
    return Cell(f"{found.estimate:.3f} [{found.low:.3f}, {found.high:.3f}]", float(found.estimate))


def number(value: float, form: str = ",.0f") -> Cell:
    """Returns a number that sorts as one."""
    return Cell(format(value, form), value)


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
    return "".join(_LATEX.get(c, c) for c in text)
