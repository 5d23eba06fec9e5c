"""Every snippet of the README and the docs does what it says: Python runs, commands are understood, links lead on."""

import itertools
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

import goalward as gw
from goalward.cli import _parser
from goalward.envs.tasks import DEFAULT_TASK, TASKS
from goalward.run.config import make_plan, parse_setting

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")] if path.is_file())
NOT_RUN = "<!-- not run -->"
PLACEHOLDER = re.compile(r"\[[A-Z-]|<|\.\.\.|\b(key|name)=value\b")


class Block(NamedTuple):
    language: str
    text: str
    line: int  # where the text begins, counted from 0
    is_run: bool


def blocks(page):
    """Returns the fenced blocks of a page."""
    found, fence = [], None
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        mark = re.match(r"\s*```(\S*)", line)
        if mark and fence is None:
            before = lines[number - 1].strip() if number else ""
            fence = (mark[1], number + 1, before != NOT_RUN)
        elif mark:
            language, first, is_run = fence
            found.append(Block(language, "\n".join(lines[first:number]), first, is_run))
            fence = None
    assert fence is None, f"{page.name}: the block in line {fence[1]} has no end"
    return found


def commands(text):
    """Returns the arguments of every goalward command in a shell script or a transcript."""
    for line in text.replace("\\\n", " ").splitlines():
        if "goalward" not in line:
            continue
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=";&|<>")
        lexer.whitespace_split = True
        command = []
        for word in [*lexer, ";"]:
            if set(word) <= set(";&|<>"):
                arguments = arguments_of(command)
                if arguments is not None:
                    yield arguments
                command = []
            else:
                command.append(word)


def arguments_of(command):
    """Returns what follows `goalward` or `python -m goalward`, None if a command is another."""
    words = list(itertools.dropwhile(lambda word: re.fullmatch(r"[A-Z_]+=.*", word), command))
    names = [word.rpartition("/")[2] for word in words]
    if names[:1] == ["goalward"]:
        return words[1:]
    if names[:1] in (["python"], ["python3"]) and names[1:3] == ["-m", "goalward"]:
        return words[3:]
    return None


def all_commands():
    """Returns (page, arguments), also of the commands within sentences; those with placeholders are left out."""
    for page in PAGES:
        prose = page.read_text(encoding="utf-8")
        texts = []
        for block in blocks(page):
            prose = prose.replace(block.text, "")
            if block.language in ("bash", "console", "sh", "shell") and block.is_run:
                texts.append(block.text)
        texts += [" ".join(span.split()) for span in re.findall(r"`(goalward [^`]+)`", prose)]
        for text in texts:
            for arguments in commands(text):
                if not PLACEHOLDER.search(" ".join(arguments)):
                    yield pytest.param(page, arguments, id=f"{page.stem}: {' '.join(arguments)}")


def with_python(pages):
    return [page for page in pages if any(block.language == "python" for block in blocks(page))]


@pytest.mark.parametrize("page", with_python(PAGES), ids=lambda page: page.stem)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python" and block.is_run:
            code = compile("\n" * block.line + block.text, str(page), "exec")
            exec(code, namespace)


@pytest.mark.parametrize(("page", "arguments"), list(all_commands()))
def test_a_command_is_understood(page, arguments):
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as exit_info:  # --help and --version
        assert exit_info.code == 0
        return
    if options.run.__name__ != "train" or options.resume:
        return
    task = options.task or DEFAULT_TASK
    if task in TASKS and not (options.preset or "").endswith(".toml"):
        given = {"seeds": options.seeds, "first_seed": options.first_seed, "steps": options.steps}
        settings = dict(parse_setting(text) for text in options.set)
        plan = make_plan(task=task, algo=options.algo or "cppo", preset=options.preset, run=given, settings=settings)
        gw.make(task, goal=options.goal, reward=options.reward, **plan.run.env)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files_that_exist(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    local = [link.partition("#")[0] for link in links if not re.match(r"[a-z]+:", link)]

    assert [link for link in local if link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_nothing_is_left_to_be_filled_in(page):
    assert re.findall(r"@[A-Z_]+@|\bTODO\b|\bXXX\b", page.read_text(encoding="utf-8")) == []


def test_the_commands_of_a_transcript_are_found():
    """The finder itself: prompts, paths, variables, chains, continued lines and output."""
    script = (
        "python3 -m venv .venv && .venv/bin/goalward train\n"
        "$ JAX_PLATFORMS=cpu goalward tasks --json | head -1\n"
        "goalward train toy/maze \\\n    --set 'hidden_sizes=[8, 8]'  # comment\n"
        "python -m goalward evaluate runs/a > a.json; ls\n"
        "goalward: Unknown task 'x'.\n"
        "pip install goalward\n"
    )
    assert list(commands(script)) == [
        ["train"],
        ["tasks", "--json"],
        ["train", "toy/maze", "--set", "hidden_sizes=[8, 8]"],
        ["evaluate", "runs/a"],
    ]
