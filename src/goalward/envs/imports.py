"""Suites print when they are imported, import far more than what is asked of them, and compute on the way."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_STREAMS = ("stdout", "stderr", "__stdout__", "__stderr__")
_one_is_quiet = threading.RLock()


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Returns a context in which nothing is printed, and after which `sys.stdout` is what it was before.

    JaxMARL prints when it is imported, and sets `sys.stdout` to `sys.__stdout__` on the way, which undoes both an
    ordinary redirection and the capture of a notebook or a test. Streams belong to all threads: one import at a time.
    """
    with _one_is_quiet, open(os.devnull, "w") as nowhere:
        streams = {name: getattr(sys, name) for name in _STREAMS}
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
        submodule = sys.modules.get(f"{self.__name__}.{name}")
        if submodule is not None:  # Python makes it an attribute only once all of it has been imported
            return submodule
        is_probe = name.startswith("__") and name not in ("__all__", "__version__")  # of warnings, inspect, doctest
        with _one_at_a_time:
            if name in vars(self):  # another thread was first
                return vars(self)[name]
            if is_probe or self.__spec__ is None or self.__spec__ in _running:
                raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")
            _run(self, self.__spec__)
        return getattr(self, name)


_one_at_a_time = threading.RLock()
_running: list[ModuleSpec] = []  # packages whose code this thread is in the middle of


def _run(module: ModuleType, spec: ModuleSpec) -> None:
    """Runs a package's own code; where that fails the next who asks is told again."""
    _running.append(spec)
    try:
        if spec.loader is not None:
            spec.loader.exec_module(module)
    finally:
        _running.remove(spec)
    module.__class__ = ModuleType


def on_cpu() -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which arrays are computed on the CPU, unless JAX was told to do without it.

    Suites compute their constants one by one, a small program each, which a CPU compiles in a fraction of the time that
    a GPU takes. A program that uses the constants takes them along wherever it runs. JAX starts only when something is
    computed: until then it can still be told of how many devices the CPU shall consist.
    """
    import jax  # here, since those who only list tasks need not wait for it

    platforms = jax.config.jax_platforms  # type: ignore[attr-defined]
    has_cpu = not platforms or "cpu" in platforms.split(",")
    return jax.default_device("cpu") if has_cpu else contextlib.nullcontext()
