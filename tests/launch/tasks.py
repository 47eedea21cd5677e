"""Tasks to start under a supervisor, and small packages for them; nothing comes from an index."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from det_keras.launch.environments.bare import make_environment
from det_keras.launch.environments.interpreter import Interpreter

#: A build backend inside of a project: needs no other package, waits for the file `go`, and counts its builds.
BACKEND = """
import os, pathlib, sys, time, zipfile

def build_wheel(directory, config_settings=None, metadata_directory=None):
    marks = pathlib.Path(os.environ["BUILD_MARKS"])
    (marks / str(os.getpid())).touch()
    while not (marks / "go").exists():
        time.sleep(0.02)
    name = "slow-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(directory, name), "w") as wheel:
        info = "slow-1.0.dist-info/"
        wheel.writestr("slow.py", "VALUE = 'slow'\\n")
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: slow\\nVersion: 1.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name

def build_editable(*_):
    raise RuntimeError("The directory of the task is deleted at its end.")
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "slow"
version = "1.0"
"""


def write_wheel(
    folder: Path, name: str, version: str, requires: tuple[str, ...] = (), script: bool = False
) -> Path:
    """Write a wheel whose module `name` has the version as `VERSION`; with `script`, also a program `name`."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    files = {
        f"{name}.py": f"VERSION = {version!r}\ndef main():\n    print(VERSION)\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if script:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{name} = {name}:main\n"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for inner, text in files.items():
            wheel.writestr(inner, text)
        names = "".join(f"{inner},,\n" for inner in (*files, f"{info}/RECORD"))
        wheel.writestr(f"{info}/RECORD", names)
    return path


def make_interpreter(folder: Path, *wheels: Path) -> Path:
    """Make a virtual environment with a few packages and without pip, as a master's may be; return its interpreter."""
    facts = Interpreter.ask(sys.executable, {"PATH": os.environ["PATH"]})
    make_environment(folder, facts)
    for wheel in wheels:
        zipfile.ZipFile(wheel).extractall(folder / facts.library)
    return folder / "bin" / "python"


class Task:
    """One task under a supervisor.

    Args:
        root: a directory of its own; the cache of environments is beside it.
        argv: the command.
        request: what the config asks of the Python environment.
        files: name -> text of the context directory.
        supervisor: the interpreter of the supervisor.
        variables: variables of the task.
    """

    def __init__(
        self,
        root: Path,
        argv: list[str],
        request: dict[str, Any] | None = None,
        files: dict[str, str] | None = None,
        supervisor: Path | str = sys.executable,
        **variables: str,
    ) -> None:
        self.directory = root / "allocation"
        self.directory.mkdir(parents=True)
        self.work = root / "work"
        self.environments = root.parent / "environments"
        context = root / "context"
        context.mkdir()
        for name, text in (files or {}).items():
            (context / name).parent.mkdir(parents=True, exist_ok=True)
            (context / name).write_text(text)
        with tarfile.open(root / "context.tar.gz", "w:gz") as archive:
            archive.add(context, ".")
        spec = {
            "argv": argv,
            "environment": {
                "HOME": str(root.parent),
                "PYTHONUNBUFFERED": "1",
                "UV_OFFLINE": "1",
                **variables,
            },
            "directory": str(self.work),
            "context": str(root / "context.tar.gz"),
            "python_environment": request,
            "environments": str(self.environments),
        }
        (self.directory / "spec.json").write_text(json.dumps(spec))
        # As for a master from a work tree: its package is found by PYTHONPATH.
        repository = str(Path(__file__).parents[2])
        self.process = subprocess.Popen(
            [str(supervisor), "-m", "det_keras.launch.supervisor", str(self.directory / "spec.json")],
            env={**os.environ, "PYTHONPATH": repository},
            start_new_session=True,
        )

    def finish(self) -> dict[str, Any]:
        """Return what the supervisor wrote at its end."""
        assert self.process.wait(120) == 0
        return json.loads((self.directory / "exit.json").read_text())

    def output(self) -> list[str]:
        """Return the lines that the task printed."""
        return [entry["m"].rstrip("\n") for entry in self._entries() if "l" not in entry]

    def notes(self) -> str:
        """Return the lines that the supervisor wrote."""
        return "".join(entry["m"] for entry in self._entries() if "l" in entry)

    def _entries(self) -> list[dict[str, Any]]:
        log = self.directory / "log.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
