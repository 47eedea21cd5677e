"""Builds an environment with uv, so that it has what is asked for and not what the interpreter has already.

uv resolves for the packages that are installed in the environment, and prefers them. A virtual environment has none of
those that its interpreter has. So descriptions of the interpreter's packages (their `.dist-info`, without any code) are
written into the new environment first. uv then installs what is missing, replaces a description where another version
is needed, and leaves the others, which are removed in the end. A package of the interpreter need not exist in any
index for that: TensorFlow is not downloaded again, and a Horovod that was compiled here is kept.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from det_keras.about import __version__
from det_keras.launch.environments.bare import link_packages, make_environment, packages_folder
from det_keras.launch.environments.interpreter import Interpreter, installed_packages
from det_keras.launch.environments.request import BuildError, EnvironmentRequest
from det_keras.launch.environments.uv import explain, is_transient
from det_keras.launch.process_group import GroupReaper, die_with_parent, signal_group

_PASSWORD = re.compile(r"://[^/@\s]+@")
_MARK = "det_keras: of the interpreter"

# Each names another environment, or a project, than the one that is built.
_NOT_FOR_UV = frozenset(
    {"VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME", "UV_PYTHON", "UV_SYSTEM_PYTHON"}
)


@dataclass(frozen=True)
class Build:
    """The build of one environment.

    Attributes:
        uv: path of uv.
        interpreter: the interpreter below the environment.
        request: what is asked for.
        has_editable: whether a requirement asks for a link to its source.
        context: the context directory, unpacked; relative paths are relative to it.
        variables: the task's environment variables.
        note: writes a line to the task's log.
        reaper: kills uv when this process ends.
    """

    uv: str
    interpreter: Interpreter
    request: EnvironmentRequest
    has_editable: bool
    context: Path
    variables: Mapping[str, str]
    note: Callable[[str], None]
    reaper: GroupReaper

    def run(self, environment: Path, lock: IO[str]) -> dict[str, Any]:
        """Build the environment in a directory that does not exist yet.

        Args:
            environment: the directory.
            lock: an open file, to be held open by all processes of the build.

        Returns:
            What is recorded: ``packages``, its own with their versions, and ``python``, its interpreter.

        Raises:
            BuildError: uv failed.
            OSError: the directory cannot be written.
        """
        began = time.monotonic()
        self.note(f"Building an environment on {self.interpreter} with {self._asked()}.")
        make_environment(environment, self.interpreter)
        packages = packages_folder(environment, self.interpreter)
        below = installed_packages(self.interpreter, self.variables)
        # This package may be found by PYTHONPATH only, and exists in no index in this version.
        below.setdefault("det_keras", (__version__, (), ()))
        for name, (version, requires, extras) in below.items():
            _describe(packages, name, version, requires, extras)
        self._install(environment, lock)
        for mark in packages.glob("*.dist-info/INSTALLER"):
            if mark.read_text(encoding="utf-8") == _MARK:
                shutil.rmtree(mark.parent)
        link_packages(environment, self.interpreter, self.interpreter.site_folders)
        own = _own_packages(packages)
        self.note(f"Built the environment in {time.monotonic() - began:.1f} s: {_changes(own, below)}.")
        return {"packages": own, "python": self.interpreter.path}

    def _asked(self) -> str:
        # Without options and without passwords in addresses: the log is visible to others.
        parts = [_PASSWORD.sub("://***@", line) for line in self.request.pip if not line.startswith("-")]
        if self.request.requirements is not None:
            parts.append(f"the file {self.request.requirements}")
        return ", ".join(parts)

    def _install(self, environment: Path, lock: IO[str]) -> None:
        command = [
            self.uv,
            "pip",
            "install",
            "--python",
            str(environment / "bin" / "python"),
            "--no-progress",
            # Otherwise each task would compile them again: the environment is not theirs to write to.
            "--compile-bytecode",
        ]
        # Tasks share the environment, and each has another directory, which is deleted at its end.
        command += ["--no-editable"] if self.has_editable else []
        if self.request.requirements is not None:
            command += ["--requirements", str(self.context / self.request.requirements)]
        if self.request.pip:
            listed = environment / "requirements.txt"
            listed.write_text("".join(f"{line}\n" for line in self.request.pip), encoding="utf-8")
            command += ["--requirements", str(listed)]
        output, code = self._run(command, lock)
        if code != 0:
            raise BuildError(
                f"The environment cannot be built: {explain(output, str(environment.parent))}",
                is_transient=is_transient(output),
            )

    def _run(self, command: Sequence[str], lock: IO[str]) -> tuple[list[str], int]:
        environment = {name: value for name, value in self.variables.items() if name not in _NOT_FOR_UV}
        process = subprocess.Popen(
            command,
            cwd=self.context,
            env={**environment, "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=die_with_parent(),
            pass_fds=(lock.fileno(),),
        )
        self.reaper.watch(process.pid)
        output = []
        try:
            assert process.stdout is not None
            for line in process.stdout:
                output.append(line.rstrip("\n"))
                self.note(f"uv: {output[-1]}")
        finally:
            # Also after a signal to this process, with uv still running.
            signal_group(process.pid, signal.SIGKILL)
            self.reaper.forget(process.pid)
            code = process.wait()
        return output, code


def _describe(
    packages: Path, name: str, version: str, requires: Sequence[str], extras: Sequence[str]
) -> None:
    folder = packages / f"{re.sub(r'[-_.]+', '_', name)}-{version}.dist-info"
    # Two names of one package, such as an old and a new installation of it.
    folder.mkdir(exist_ok=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    lines += [f"Provides-Extra: {extra}" for extra in extras]
    (folder / "METADATA").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "INSTALLER").write_text(_MARK, encoding="utf-8")
    # What uv deletes when it replaces the package.
    files = ("METADATA", "INSTALLER", "RECORD")
    (folder / "RECORD").write_text("".join(f"{folder.name}/{file},,\n" for file in files), encoding="utf-8")


def _own_packages(packages: Path) -> dict[str, str]:
    found = {}
    for folder in sorted(packages.glob("*.dist-info")):
        name, _, version = folder.name.removesuffix(".dist-info").rpartition("-")
        found[name] = version
    return found


def _changes(own: Mapping[str, str], below: Mapping[str, tuple[str, Sequence[str], Sequence[str]]]) -> str:
    if not own:
        return "the interpreter has everything already"
    known = {re.sub(r"[-_.]+", "_", name).lower(): version for name, (version, _, _) in below.items()}
    shown = []
    for name, version in own.items():
        before = known.get(name.lower())
        shown.append(f"{name} {version}" + ("" if before is None else f" in place of {before}"))
    return ", ".join(shown)
