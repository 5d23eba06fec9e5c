"""How large the page of the paper's whole benchmark is, and how long a browser takes to show it.

    python benchmarks/report_page.py

18 tasks x 3 methods x 10 seeds x 81 evaluations, with made-up numbers and without films. Needs Debian's chromium.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from goalward.report.collect import collect
from goalward.report.page import write_report

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "report"))


def main() -> None:
    """Writes the results and prints them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="how often the page is opened (default: 5)")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "report_page.json")
    options = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("Needs Debian's chromium: apt-get install chromium")
    from made_runs import write_benchmark

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        write_benchmark(Path(folder))
        began = time.perf_counter()
        page = write_report(collect([Path(folder)]), Path(folder) / "report")
        row = {"megabytes": page.stat().st_size / 1e6, "seconds to write": time.perf_counter() - began}
        browser = playwright.chromium.launch(executable_path=chromium)
        row["seconds to load"] = statistics.median(seconds_to_load(browser, page) for _ in range(options.repeats))
        browser.close()
    options.out.write_text(json.dumps({name: round(value, 2) for name, value in row.items()}, indent=1) + "\n")
    print(" ".join(f"{name}: {value:.2f}" for name, value in row.items()))


def seconds_to_load(browser: Browser, path: Path) -> float:
    """Returns how long the page takes until it is laid out and its scripts have run, in a browser without a cache."""
    context = browser.new_context()
    page = context.new_page()
    began = time.perf_counter()
    page.goto(path.as_uri(), wait_until="load")
    page.evaluate("document.body.offsetHeight")
    seconds = time.perf_counter() - began
    context.close()
    return seconds


if __name__ == "__main__":
    main()
