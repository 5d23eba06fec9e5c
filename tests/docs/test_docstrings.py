"""The examples in the docstrings of the package work."""

import doctest
import importlib
import pkgutil

import pytest

import goalward


def modules_with_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    for info in pkgutil.walk_packages(goalward.__path__, "goalward."):
        if info.name == "goalward.__main__":
            continue
        module = importlib.import_module(info.name)
        if any(test.examples for test in finder.find(module)):
            yield info.name


@pytest.mark.parametrize("name", ["goalward", *modules_with_examples()])
def test_the_examples_of_a_module_work(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    results = doctest.testmod(module, extraglobs={"tmp_path": tmp_path}, optionflags=doctest.ELLIPSIS)

    assert results.attempted > 0
    assert results.failed == 0
