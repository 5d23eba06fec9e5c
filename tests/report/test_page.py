"""The page: what it says, that it says nothing it was not told to, and that it is the same for the same runs."""

import csv
import html.parser
import json
import re

import numpy as np
import pytest
import tomli_w
from made_runs import learning_curves, write_benchmark, write_run, write_survey

from goalward.report.collect import collect
from goalward.report.figures import Line, Panel, as_file, draw
from goalward.report.page import render, write_report
from goalward.report.sections import sections
from goalward.stats import Interval

SCRIPT = "<script>alert(1)</script>"


class Elements(html.parser.HTMLParser):
    """All elements of a page, with the text that scripts hold."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.scripts, self.addresses = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href", "xlink:href", "srcset")]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.scripts and self.tags[-1] == "script":
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A few runs of everything that a section is made for."""
    root, rng = tmp_path_factory.mktemp("runs"), np.random.default_rng(0)
    for task in ("toy/rooms", "toy/swarm", "connector/5x5x3a", "connector/7x7x5a"):
        for algo, top in (("cppo", 0.9), ("ppo", 0.6)):
            path = write_run(root / task / algo, task, algo, learning_curves(rng, 5, 6, top))
            if task == "toy/rooms":
                write_survey(path)
    write_run(root / "sparse", "toy/rooms", "ppo", learning_curves(rng, 5, 6, 0.3), run={"reward": "sparse"})
    return root


def page_of(root):
    found = collect([root])
    return render(found, list(sections(found)))


def test_every_part_is_there(runs, tmp_path):
    page = write_report(collect([runs]), tmp_path)
    headings = re.findall(r"<h2>(.*?)</h2>", page.read_text())
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")}

    assert headings == [
        "By suite",
        "Sample efficiency by suite",
        "Beside dense rewards",
        "By task",
        "Goals, rewards and settings",
        "Larger grids, more agents",
        "Performance profiles",
        "Values and chosen actions",
        "Runs",
    ]
    for figure in ("curves", "dense", "tasks", "variants", "scaling", "profiles", "maps-0", "maps-1"):
        assert {f"figures/{figure}.svg", f"figures/{figure}.pdf"} <= written
    for table in ("aggregates", "tasks", "runs"):
        assert {f"tables/{table}.csv", f"tables/{table}.tex"} <= written


def test_the_same_runs_give_the_same_page(runs):
    assert page_of(runs) == page_of(runs)


def test_the_verdicts_are_counted(runs):
    page = page_of(runs)

    assert "cppo against ppo, on 4 tasks at 95 %: better on 4, level on 0, worse on 0." in page


def test_the_papers_numbers_stand_beside_ours(runs):
    rows = re.findall(r"<tr>(.*?)</tr>", page_of(runs), re.DOTALL)
    (connector,) = [row for row in rows if ">connector<" in row and ">cppo<" in row]
    (ppo,) = [row for row in rows if ">connector<" in row and ">ppo<" in row]

    assert "0.955 [0.950, 0.961]" in connector
    assert "0.955" not in ppo


def test_few_seeds_and_unfinished_runs_are_warned_about(tmp_path):
    write_run(tmp_path / "a", "toy/rooms", "cppo", np.full((3, 4), 0.5), finished=False)
    page = page_of(tmp_path)

    assert "rest on 4 seeds. With fewer than 5 the intervals come out too narrow." in page
    assert "Not come to the end: 1 run." in page


def test_a_run_that_has_not_ended_is_drawn_and_not_judged(tmp_path):
    write_run(tmp_path / "a", "toy/rooms", "cppo", np.full((3, 5), 0.9))
    write_run(tmp_path / "b", "toy/rooms", "ppo", np.full((2, 5), 0.1), finished=False)
    found = collect([tmp_path])
    parts = {part.name: part for part in sections(found)}

    assert [line.name for line in parts["tasks"].panels[0].lines] == ["cppo", "ppo"]
    assert [row[1].text for row in parts["tasks"].tables[0].rows] == ["cppo"]
    assert [row[1].text for row in parts["suites"].tables[0].rows] == ["cppo"]
    assert "against" not in parts["tasks"].text


def test_methods_with_other_budgets_are_not_compared(tmp_path):
    write_run(tmp_path / "a", "toy/rooms", "cppo", np.full((3, 5), 0.9), last_step=1000)
    write_run(tmp_path / "b", "toy/rooms", "ppo", np.full((3, 5), 0.1), last_step=9000)
    page = page_of(tmp_path)

    assert "Not compared, since cppo was trained for another number of steps: ppo on toy/rooms (9,000 steps)." in page
    assert "better on" not in page


def test_without_cppo_the_first_method_is_compared_with(tmp_path):
    rng = np.random.default_rng(0)
    for reward, top in (("dense", 0.9), ("sparse", 0.2)):
        curves = learning_curves(rng, 5, 6, top)
        write_run(tmp_path / reward, "toy/rooms", "ppo", curves, run={"reward": reward})
    page = page_of(tmp_path)

    assert "ppo against ppo reward=sparse, on 1 task at 95 %: better on 1, level on 0, worse on 0." in page
    assert "paper" not in page


def test_a_critic_that_blew_up_leaves_a_page_that_works(tmp_path):
    path = write_run(tmp_path / "a", "toy/rooms", "cppo", np.full((3, 5), 0.5))
    write_survey(path)
    survey = json.loads((path / "media" / "survey.json").read_text())
    survey["value"] = [[[float("inf"), 0.0], [float("nan"), float("-inf")]]]
    (path / "media" / "survey.json").write_text(json.dumps(survey))

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    for text in Elements(page_of(tmp_path)).scripts[:-1]:
        json.loads(text, parse_constant=refuse)


def test_a_table_has_its_intervals_in_csv_too(runs, tmp_path):
    write_report(collect([runs]), tmp_path)
    with (tmp_path / "tables" / "aggregates.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    html = (tmp_path / "index.html").read_text()

    assert len(rows) == 5
    for row in rows:
        low, estimate, high = (float(row[name]) for name in ("IQM low", "IQM", "IQM high"))
        assert low <= estimate <= high
        assert f"{estimate:.3f} [{low:.3f}, {high:.3f}]" in html


def test_five_seeds_are_enough(tmp_path):
    write_run(tmp_path / "a", "toy/rooms", "cppo", np.full((3, 5), 0.5))

    assert 'class="warning"' not in page_of(tmp_path)


def test_what_users_write_is_text_and_never_markup(tmp_path):
    """Script tags as the names of task, run, study, variant and cell, and in settings, versions and last words."""
    study = {
        "name": SCRIPT,
        "title": SCRIPT,
        "scale": 0.5,
        "seeds": 5,
        "steps": 1000,
        "settings": {},
        "cells": [{"task": SCRIPT, "algo": "cppo", "variant": SCRIPT}, {"task": "toy/rooms", "algo": SCRIPT}],
    }
    tmp_path.joinpath("study.toml").write_text(tomli_w.dumps(study))
    logs = tmp_path / "logs" / "toy" / "rooms"
    logs.mkdir(parents=True)
    for path in (tmp_path / SCRIPT.replace("/", "\N{FRACTION SLASH}"), tmp_path / "-script-alert-1-" / "script"):
        write_run(path, "toy/rooms", "cppo", np.full((3, 5), 0.5), extra={f"task/{SCRIPT}": 0.5})
        results = path / "results.json"
        results.write_text(results.read_text().replace('"rooms"', json.dumps(SCRIPT)))
        versions = {"goalward": SCRIPT, "packages": {"jax": SCRIPT}, "devices": [SCRIPT], "commit": SCRIPT}
        (path / "versions.json").write_text(json.dumps(versions))
        config = path / "config.toml"
        config.write_text(re.sub('preset = ".*?"', f'preset = "{SCRIPT}"', config.read_text()))
        write_survey(path)
        survey = path / "media" / "survey.json"
        survey.write_text(survey.read_text().replace('"up"', json.dumps(SCRIPT)).replace('""', json.dumps(SCRIPT)))
    page = page_of(tmp_path)
    elements = Elements(page)

    assert "was shrunk to 0.5 of its declared size: 5 seeds, 1,000 steps each." in page
    assert "alert(1)" in page
    assert SCRIPT not in page
    data = [json.loads(text) for text in elements.scripts[:-1]]
    assert len(data) == page.count("<figure data-chart=")
    assert elements.scripts[-1].startswith('"use strict";')


def test_names_are_no_formulas():
    points = np.array([0.0, 1.0])
    line = Line(r"$\frac$", points, Interval(points, points, points))
    figure = draw([Panel(r"$\sum_$ & 1 % of $", [line])], legend=True)

    assert r"$\sum_$ &amp; 1 % of $" in as_file(figure, "svg").decode()
    assert as_file(figure, "pdf").startswith(b"%PDF")


def test_nothing_is_asked_of_a_network(runs):
    elements = Elements(page_of(runs))

    assert elements.addresses
    assert all(address.startswith(("#", "data:")) for address in elements.addresses)


def test_the_papers_whole_benchmark_is_a_small_page(tmp_path):
    """18 tasks x 3 methods x 10 seeds x 81 evaluations; benchmarks/report_page.py asks a browser how fast it loads."""
    write_benchmark(tmp_path)
    page = page_of(tmp_path)

    assert len(page.encode()) < 5e6
