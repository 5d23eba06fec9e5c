"""The report in a real browser: Debian's chromium, headless."""

import json
import os
import shutil

import numpy as np
import pytest
from made_runs import learning_curves, write_run, write_survey
from PIL import Image

from goalward.report.collect import collect
from goalward.report.page import write_report

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium: apt-get install chromium")

# A browser that looks for updates would be refused by machines without a network, and say so in the console.
QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-gpu"]
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 800}


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Inside a container, as root, chromium cannot make a sandbox of its own.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET, chromium_sandbox=os.geteuid() != 0)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The page of a few runs, with everything on it that the pointer can touch."""
    root, rng = tmp_path_factory.mktemp("runs"), np.random.default_rng(0)
    for task in ("toy/rooms", "toy/swarm"):
        for algo, top in (("cppo", 0.9), ("ppo", 0.6)):
            path = write_run(root / task / algo, task, algo, learning_curves(rng, 5, 6, top))
            if task == "toy/rooms":
                write_survey(path)
                Image.new("RGB", (30, 20), "red").save(path / "media" / "episodes.gif")
    return write_report(collect([root]), root / "report")


@pytest.fixture
def opened(browser):
    """Returns a function that opens a page; whatever it complains of or asks a network for is a failure."""
    contexts = []

    def open_page(path, size=DESKTOP, **options):
        context = browser.new_context(viewport=size, **options)
        page = context.new_page()
        complaints = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if is_elsewhere(request.url, path) else None)
        contexts.append((context, complaints))
        page.goto(path.as_uri())
        return page

    yield open_page
    for context, complaints in contexts:
        context.close()
        assert complaints == []


def is_elsewhere(address, path):
    return address != path.as_uri() and not address.startswith("data:")


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_it_shows_without_a_complaint_and_fits_the_screen(opened, report, size, colours):
    page = opened(report, size, color_scheme=colours)

    assert page.locator("h1").inner_text() == "Runs"
    assert page.locator("figure svg").count() == page.locator("figure[data-chart]").count() > 4
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    ground, ink = (page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color"))
    assert (brightness(ground) > brightness(ink)) == (colours == "light")


def test_a_click_on_a_heading_sorts_its_column(opened, report):
    page = opened(report)
    table = page.locator("#tasks table").first
    column = [name.strip() for name in table.locator("th").all_inner_texts()].index("mean win rate")

    def shown():
        return [float(text.split()[0]) for text in table.locator(f"td:nth-child({column + 1})").all_inner_texts()]

    before = shown()
    table.locator("th button").nth(column).click()
    assert shown() == sorted(before) != before
    table.locator("th button").nth(column).click()
    assert shown() == sorted(before, reverse=True)
    assert table.locator("th").nth(column).get_attribute("aria-sort") == "descending"


def test_the_pointer_shows_the_numbers_of_a_chart(opened, report):
    page = opened(report)
    figure, data, on_page = figure_of(page, "tasks-0")
    left, top, width, height = data["box"]
    share = (data["lines"][0]["x"][-1] - data["x"][0]) / (data["x"][1] - data["x"][0])  # of the last evaluation
    page.mouse.move(*on_page(left + width * share - 1, top + height / 2))
    note = figure.locator(".pointer")

    assert note.is_visible()
    for line in data["lines"]:
        low, high = line["low"][-1], line["high"][-1]
        assert f"{line['name']} {line['estimate'][-1]:.3f} [{low:.3f}, {high:.3f}]" in note.inner_text()
    assert "1K steps" in note.inner_text()
    page.mouse.move(0, 0)
    assert not note.is_visible()


def test_the_pointer_shows_the_cells_of_a_map(opened, report):
    page = opened(report)
    figure, data, on_page = figure_of(page, "maps-0")
    seen = []
    for cells in data["maps"]:
        left, top, width, height = cells["box"]
        page.mouse.move(*on_page(left + 0.25 * width, top + 0.75 * height))
        seen.append(figure.locator(".pointer").inner_text())

    assert "row 1, column 0: -2.000" in seen[0]
    assert "row 1, column 0: down" in seen[1]


def test_films_are_shown(opened, report):
    page = opened(report)
    film = page.locator("#episodes img").first
    film.scroll_into_view_if_needed()
    page.wait_for_function("document.querySelector('#episodes img').complete")

    assert film.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [30, 20]


def figure_of(page, name):
    """Returns a figure in view, its data, and a function from places in its view box to places on the screen."""
    figure = page.locator(f"figure[data-chart={name}]")
    figure.scroll_into_view_if_needed()
    svg = figure.locator("svg")
    box, view = svg.bounding_box(), svg.evaluate("svg => svg.viewBox.baseVal.width")
    scale = box["width"] / view

    def on_page(x, y):
        return box["x"] + scale * x, box["y"] + scale * y

    return figure, json.loads(figure.locator("script").text_content()), on_page


def brightness(colour):
    return sum(int(part) for part in colour.strip("rgba()").split(",")[:3])
