"""The tables of figures in the docs are those of the results."""

import re
from pathlib import Path

import pytest
import tables
from scipy import stats

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_show_the_results_as_they_are(page):
    text = page.read_text(encoding="utf-8")
    well_formed, ended = re.findall(r"<!-- table \w+ -->\n", text), re.findall("<!-- end of table -->\n", text)

    assert len(re.findall(r"<!--.*\btable\b", text)) == len(well_formed) + len(ended) == 2 * len(ended)
    assert tables.filled(text) == text


def test_every_table_stands_somewhere():
    everything = "".join(page.read_text(encoding="utf-8") for page in PAGES)

    assert set(re.findall(r"<!-- table (\w+) -->", everything)) == set(tables.TABLES)


@pytest.mark.parametrize("before", ["", "| a table of long ago |\n"])
def test_a_table_is_written_anew_and_the_next_one_is_not_swallowed(before):
    page = f"<!-- table cppo -->\n{before}<!-- end of table -->\nbetween\n<!-- table seeds -->\n<!-- end of table -->\n"
    filled = tables.filled(page)

    assert "long ago" not in filled
    assert filled.index("toy/rooms") < filled.index("between") < filled.index("two CPU cores")


def test_the_interval_of_a_difference_is_welchs():
    first, second = [3.0, 4.0, 5.5, 4.5], [1.0, 2.5, 2.0]
    expected = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    difference, half = tables.interval(first, second)

    assert (difference - half, difference + half) == pytest.approx((expected.low, expected.high))
