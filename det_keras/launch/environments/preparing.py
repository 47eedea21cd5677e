"""Provides the environment of one task: what its config asks for, and an overlay of its own on top.

The overlay is what the task's `python`, `pip` and `uv pip` work in, so that neither its startup hook nor its script can
change the environment of the master, of another task, or of the cache.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import det_keras
from det_keras.launch.environments.bare import link_packages, make_environment, packages_folder
from det_keras.launch.environments.building import Build
from det_keras.launch.environments.cache import EnvironmentCache
from det_keras.launch.environments.interpreter import Interpreter, missing_modules, task_interpreter
from det_keras.launch.environments.request import BuildError, EnvironmentRequest
from det_keras.launch.environments.requirements import read_requirements
from det_keras.launch.environments.uv import MISSING, find_uv
from det_keras.launch.process_group import GroupReaper

_OVERLAY = Path(".det_keras") / "environment"
_PACKAGE = Path(".det_keras") / "package"
_SHOWN_CHARACTERS = 12
_OLDEST, _NEWEST = (3, 10), (3, 13)
# What `import det_keras`, `det.core` and `det.keras` import, besides the standard library.
_NEEDED = ("det_keras", "keras", "tensorflow", "numpy", "httpx", "platformdirs", "yaml", "ml_dtypes")


def refusal(request: EnvironmentRequest, search_path: str | None) -> str | None:
    """Return why this machine cannot provide an environment, as far as that is known without building it.

    Args:
        request: what the config asks for.
        search_path: the PATH of tasks.
    """
    if request.needs_packages and find_uv(search_path) is None:
        return MISSING
    if request.python is not None and not Path(request.python).expanduser().is_file():
        return (
            f"`environment.python` is {request.python!r}, which is not a file on this machine. Give the path of a "
            "Python interpreter."
        )
    return None


@dataclass(frozen=True)
class Prepared:
    """The environment of a task.

    Attributes:
        variables: the task's environment variables.
        use: an open file that keeps the cached environment from being removed; None without one.
    """

    variables: dict[str, str]
    use: IO[str] | None = None


@dataclass(frozen=True)
class Preparation:
    """Prepares the environment of one task.

    Attributes:
        request: what the config asks for.
        directory: the working directory, with the files of the context directory.
        variables: the task's environment variables.
        cache: the environments of this machine.
        note: writes a line to the task's log, with its level.
        reaper: kills a build when this process ends.
    """

    request: EnvironmentRequest
    directory: Path
    variables: Mapping[str, str]
    cache: EnvironmentCache
    note: Callable[[str, str], None]
    reaper: GroupReaper

    def run(self) -> Prepared:
        """Return the environment, built if it does not exist yet.

        Raises:
            BuildError: it cannot be provided.
        """
        interpreter = task_interpreter(self.request.python, self.variables)
        try:
            cached, use = self._cached(interpreter) if self.request.needs_packages else (None, None)
            prepared = Prepared(self._overlay(interpreter, cached), use)
        except OSError as error:
            raise BuildError(_unwritable(error)) from error
        if self.request.python is not None:
            self._warn(interpreter, prepared.variables)
        return prepared

    def _cached(self, interpreter: Interpreter) -> tuple[Path, IO[str]]:
        uv = find_uv(self.variables.get("PATH"))
        if uv is None:
            raise BuildError(MISSING)
        asked = read_requirements(self.request, self.directory, self.variables)
        build = Build(
            uv=uv,
            interpreter=interpreter,
            request=self.request,
            has_editable=asked.has_editable,
            context=self.directory,
            variables=self.variables,
            note=self._inform,
            reaper=self.reaper,
        )
        key = asked.digest(interpreter.identity)
        environment, _, use = self.cache.take(
            key,
            build.run,
            lambda: self._inform("Another task builds the same environment; waiting for it."),
        )
        self._inform(f"Using the environment {key[:_SHOWN_CHARACTERS]} in {self.cache.folder}.")
        return environment, use

    def _overlay(self, interpreter: Interpreter, cached: Path | None) -> dict[str, str]:
        overlay = self.directory / _OVERLAY
        make_environment(overlay, interpreter)
        below = interpreter.site_folders if cached is None else (str(packages_folder(cached, interpreter)),)
        last = [interpreter.pip_wheel]
        if self.request.python is not None:
            # The interpreter may lack this package. It is pure Python, so that of this process does.
            folder = self.directory / _PACKAGE
            folder.mkdir()
            (folder / "det_keras").symlink_to(Path(det_keras.__file__).resolve().parent)
            last.append(str(folder))
        link_packages(overlay, interpreter, below, last)
        programs = [overlay / "bin"]
        if cached is not None:
            programs.append(cached / "bin")
        if self.request.python is not None:
            programs.append(Path(interpreter.path).parent)
        path = self.variables.get("PATH", os.defpath)
        return {
            **{name: value for name, value in self.variables.items() if name != "PYTHONHOME"},
            "PATH": os.pathsep.join([*map(str, programs), path]),
            "VIRTUAL_ENV": str(overlay),
            # pip would refuse to work in a virtual environment with the setting `user = true`.
            "PIP_USER": "0",
        }

    def _warn(self, interpreter: Interpreter, variables: Mapping[str, str]) -> None:
        if not _OLDEST <= interpreter.version[:2] <= _NEWEST:
            self.note(
                f"{interpreter} is not a version that det_keras supports ({_OLDEST[0]}.{_OLDEST[1]} to "
                f"{_NEWEST[0]}.{_NEWEST[1]}): a script that imports det_keras may fail.",
                "WARNING",
            )
        python = Path(variables["VIRTUAL_ENV"], "bin", "python")
        missing = missing_modules(python, _NEEDED, variables)
        if missing:
            self.note(
                f"{interpreter} has no {', '.join(missing)}: a script that uses det_keras.keras fails there. "
                "Install `det_keras[tensorflow]` for this interpreter, or name what is missing in `environment.pip`. "
                "A task that does not train may not need it.",
                "WARNING",
            )

    def _inform(self, text: str) -> None:
        self.note(text, "INFO")


def _unwritable(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"The disk is full: the environment cannot be written to {error.filename}. Free some space there."
        )
    return f"The environment cannot be provided: {error.filename}: {error.strerror}."
