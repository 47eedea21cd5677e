"""What a warm process imports."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Collection
from pathlib import Path

from warm.program import Ground

__all__ = ["import_all"]

_TESTS = str(Path(__file__).resolve().parents[1])
# What is not installed is skipped.
_MODULES = ["tensorflow", "keras", "det_keras.keras", "sklearn.datasets", "pandas", "keras_tuner", "pytest"]
# The libraries of linear algebra start threads when they are imported, unless they are to use a single one.
_SINGLE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def import_all(folders: Collection[str], ours: Collection[int]) -> Ground:
    """Import everything and return what this process is then.

    Args:
        folders: entries of `sys.path` that the forks do not have, besides that of the tests and those of PYTHONPATH.
        ours: descriptors that belong to no library.

    Raises:
        RuntimeError: an import has started threads, so that forks would not be whole.
    """
    before = dict(os.environ)
    os.environ.update(_SINGLE)
    for name in _MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    os.environ.clear()
    os.environ.update(before)
    threads = list(Path("/proc/self/task").iterdir())
    if len(threads) > 1:
        raise RuntimeError(f"An import has started {len(threads) - 1} threads: forks would not be whole.")
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [one for one in sys.path if one not in (_TESTS, *folders, *inherited)]
    return Ground.here(path, ours)
