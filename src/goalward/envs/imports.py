"""Suites print when they are imported, import far more than what is asked of them, and compute on the way."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import jax

_STREAMS = ("stdout", "stderr", "__stdout__", "__stderr__")


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Returns a context in which nothing is printed, and after which `sys.stdout` is what it was before.

    JaxMARL prints when it is imported, and sets `sys.stdout` to `sys.__stdout__` on the way, which undoes both an
    ordinary redirection and the capture of a notebook or a test.
    """
    streams = {name: getattr(sys, name) for name in _STREAMS}
    with open(os.devnull, "w") as nowhere:
        for name in _STREAMS:
            setattr(sys, name, nowhere)
        try:
            yield
        finally:
            for name, stream in streams.items():
                setattr(sys, name, stream)


def postpone(*packages: str) -> None:
    """Puts off what packages do when they are imported, until something is asked of them that they do not have.

    `from package.module import name` then imports the module alone. JaxMARL imports all its environments, which takes
    longer than anything else that a run does before it trains. A package that is imported already stays as it is.
    Parents come first.
    """
    for name in packages:
        if name in sys.modules:
            continue
        spec = importlib.util.find_spec(name)
        if spec is None:  # whoever imports it next is told
            return
        module = importlib.util.module_from_spec(spec)
        module.__class__ = _Postponed
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


class _Postponed(ModuleType):
    """A package whose own code has not run yet."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self.__spec__ is None or self.__spec__.loader is None:
            raise AttributeError(name)
        submodule = sys.modules.get(f"{self.__name__}.{name}")
        if submodule is not None:  # Python makes it an attribute only once all of it has been imported
            return submodule
        self.__class__ = ModuleType  # type: ignore[assignment]
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def on_cpu() -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which arrays are computed on the CPU, unless JAX was told to do without it.

    Suites compute their constants one by one, a small program each, which a CPU compiles in a fraction of the time that
    a GPU takes. A program that uses the constants takes them along wherever it runs.
    """
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:
        return contextlib.nullcontext()
