"""The built package, and virtual environments to install it into."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 600


def run(*command, check=True, **options):
    """Run a program and return what it printed; `check` fails with its output."""
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False, **options
    )
    if check:
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done


def build(tree: Path, out: Path) -> dict[str, Path]:
    """Build sdist and wheel of a source tree; the wheel is built from the sdist."""
    run(
        "uv",
        "build",
        "--quiet",
        "--out-dir",
        out,
        tree,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1767225600"},
    )
    (sdist,) = out.glob("*.tar.gz")
    (wheel,) = out.glob("*.whl")
    return {"sdist": sdist, "wheel": wheel}


def copy_of_tree(target: Path) -> Path:
    """Copy the repository without what Git ignores."""
    ignored = shutil.ignore_patterns(
        ".git", ".venv", ".tox", ".hypothesis", ".*_cache", "__pycache__", "build", "dist", "*.egg-info"
    )
    # `copy` gives the copies new times.
    shutil.copytree(REPOSITORY, target, ignore=ignored, copy_function=shutil.copy)
    for path in target.rglob("*"):
        # As if a umask of 077 had been set.
        path.chmod(path.stat().st_mode & ~0o077)
    return target


@dataclass(frozen=True)
class Environment:
    """A virtual environment that this test run does not share."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    @classmethod
    def create(cls, folder: Path, *requirements: str | Path) -> Environment:
        """Make an environment in a new folder and install into it."""
        run("uv", "venv", "--quiet", "--python", sys.executable, folder / "venv")
        # Nothing of the environment that runs the tests may be found.
        variables = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "KERAS_BACKEND")
        }
        for name in (
            "VIRTUAL_ENV",
            "DET_MASTER",
            "DET_USER",
            "DET_PASS",
            "DET_USER_TOKEN",
            "PYTHONDONTWRITEBYTECODE",
        ):
            variables.pop(name, None)
        variables.update(
            DET_KERAS_HOME=str(folder / "home"),
            PATH=f"{folder}/venv/bin:/usr/bin:/bin",
            TF_CPP_MIN_LOG_LEVEL="3",
        )
        environment = cls(folder, variables)
        environment.pip("install", *requirements)
        return environment

    def pip(self, action, *arguments):
        """Install or uninstall packages."""
        run("uv", "pip", action, "--quiet", "--python", self.folder / "venv", *arguments)

    def run(self, program, *arguments, check=True):
        """Run a program that is installed here."""
        program = self.folder / "venv/bin" / program
        return run(program, *arguments, check=check, env=self.variables, cwd=self.folder)

    def distributions(self) -> set[str]:
        """Return the names of the installed distributions."""
        listed = run("uv", "pip", "list", "--format=json", "--python", self.folder / "venv").stdout
        return {item["name"] for item in json.loads(listed)}
