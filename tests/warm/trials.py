"""Trials and jobs of an embedded master as forks of their supervisors, whose fork server has imported TensorFlow.

The supervisors are unchanged otherwise. A task is a fork if it is a program of this interpreter, started directly or by
a shell that does nothing else, and a new process in every other case.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from warm import ranks
from warm.imports import import_all

__all__ = ["SITE", "prepare", "warm_trials"]

#: In the PYTHONPATH of a master: its trials are warm.
SITE = str(Path(__file__).parent / "site")


@contextlib.contextmanager
def warm_trials() -> Iterator[None]:
    """Let the masters that are started meanwhile have warm trials."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([SITE, *filter(None, [before])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def prepare() -> None:
    """Import, and let the supervisors that this process forks fork their tasks."""
    ground = import_all([SITE], [])
    from det_keras.launch import supervisor  # the import of the package comes after those of `import_all`

    start_group = ranks.forking(supervisor.start_group, ground)

    def start(
        argv: Sequence[str], environment: Mapping[str, str], directory: str | None = None, **options: Any
    ) -> Any:
        return start_group(argv, _without_site(environment), directory, **options)

    supervisor.start_group = start


def _without_site(environment: Mapping[str, str]) -> dict[str, str]:
    folders = [one for one in environment.get("PYTHONPATH", "").split(os.pathsep) if one not in ("", SITE)]
    found = {**environment, "PYTHONPATH": os.pathsep.join(folders)}
    return found if folders else {name: value for name, value in found.items() if name != "PYTHONPATH"}
