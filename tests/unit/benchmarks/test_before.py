"""benchmarks/before.py compares two states of the package."""

import shutil
import subprocess
from pathlib import Path

import before
import pytest
import tables

import goalward as gw


@pytest.fixture
def earlier(tmp_path, monkeypatch):
    """A repository whose first commit has another package than its working tree."""

    def git(*arguments):
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)

    package = tmp_path / "src" / "goalward" / "__init__.py"
    package.parent.mkdir(parents=True)
    package.write_text("SPEED = 1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "First")
    package.write_text("SPEED = 2\n")
    monkeypatch.setattr(before, "ROOT", tmp_path)
    return git("rev-parse", "HEAD").stdout.strip()


def test_a_commit_is_unpacked_as_it_was(earlier, tmp_path):
    source = before.unpack(earlier, tmp_path / "unpacked")

    assert (source / "goalward" / "__init__.py").read_text() == "SPEED = 1\n"


@pytest.mark.usefixtures("earlier")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["no-such-commit"], "git rev-parse --verify no-such-commit^{commit} failed"),
        (["HEAD", "--out", "/dev/null/before.json"], "Expected a folder that can be made and written"),
        (["HEAD", "--repeats", "0"], "expected --repeats to be at least 1; found 0"),
        ([], "name the commit to compare with"),
    ],
)
def test_mistakes_are_explained_an_unknown_commit_in_the_words_of_git(arguments, sentence, capsys):
    with pytest.raises(SystemExit) as ended:
        before.main(arguments)

    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_speed_is_that_of_the_second_half():
    """By hand: two seeds, 300 steps in 4 seconds after the middle; the first half compiled."""
    records = [
        {"seed": seed, "step": step, "elapsed": elapsed}
        for step, elapsed in [(0, 20.0), (300, 30.0), (600, 34.0)]
        for seed in (0, 1)
    ]

    assert before.speed_of_second_half(records) == pytest.approx(2 * 300 / 4.0)


def test_a_package_from_elsewhere_is_noticed(tmp_path):
    """A path without the package leaves the one that is installed, or none."""
    with pytest.raises(SystemExit, match=r"Expected goalward to be imported|No module named 'goalward'"):
        before.speed_in_new_process("toy/rooms", "quick", 2048, tmp_path)


def test_every_second_repeat_is_the_other_way_round(monkeypatch):
    """By hand: speeds of 1, 2, 3, ... in the order in which they are measured."""
    order = []
    monkeypatch.setattr(before, "speed_in_new_process", lambda *run: float(order.append(run[-1]) or len(order)))
    row = before.compare("toy/rooms", "quick", 64, {"before": Path("old"), "now": Path("new")}, repeats=3)

    assert [path.name for path in order] == ["old", "new", "new", "old", "old", "new"]
    assert (row["before"], row["now"]) == ([1.0, 4.0, 5.0], [2.0, 3.0, 6.0])


@pytest.mark.slow
def test_both_sides_are_trained_in_turn(tmp_path):
    copy = shutil.copytree(Path(gw.__file__).parents[1], tmp_path / "src")
    row = before.compare("toy/rooms", "quick", 2048, {"before": copy, "now": before.ROOT / "src"}, repeats=2)
    first, second = row["ratios"]

    assert first == row["now"][0] / row["before"][0]
    assert row["median_ratio"] == pytest.approx((first + second) / 2)


def test_the_table_shows_medians_and_the_range_of_ratios():
    row = {"task": "toy/rooms", "preset": "tuned", "before": [100.0, 300.0, 200.0], "now": [400.0, 600.0, 500.0]}
    row |= {"ratios": [4.0, 2.0, 2.5], "median_ratio": 2.5}

    assert tables.before([row]).splitlines()[-1] == "| `toy/rooms` | tuned | 200 | 500 | 2.50 (2.00 to 4.00) |"
