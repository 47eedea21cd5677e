"""Look for known vulnerabilities in the locked packages that users install; `tox -e audit` runs this.

It audits the package with all of its extras at the versions of ``uv.lock``, without what only tests and documents need.
The list of vulnerabilities comes from the Python Package Index. Where it cannot be reached, this is said, and the exit
code is 0: a machine without a network cannot audit anything, and its other checks still count.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = "https://pypi.org/pypi/pip/24.0/json"
TIMEOUT_S = 20.0
# These exclude each other: each excluded extra is the same code as another one, compiled for another machine.
NOT_AUDITED = ("and-cuda", "tensorflow-cpu")


def why_unreachable() -> str:
    """Return why the list of vulnerabilities cannot be read; empty if it can be."""
    try:
        with urllib.request.urlopen(SOURCE, timeout=TIMEOUT_S) as answer:
            content = answer.read()
    except (OSError, ValueError) as error:
        return str(error)
    # A mirror may answer without this part.
    return "" if b'"vulnerabilities"' in content else "the answer has no list of vulnerabilities"


def export(target: Path) -> None:
    """Write the locked packages as requirements."""
    command = ["uv", "export", "--locked", "--quiet", "--no-emit-project", "--no-default-groups"]
    extras = ["--all-extras", *(part for name in NOT_AUDITED for part in ("--no-extra", name))]
    subprocess.run([*command, *extras, "--output-file", str(target)], cwd=ROOT, check=True)


def main(arguments: list[str]) -> int:
    """Audit the packages; return the exit code of pip-audit."""
    if reason := why_unreachable():
        print(f"Not audited: the list of vulnerabilities cannot be read from {SOURCE} ({reason}).")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder) / "requirements.txt"
        export(requirements)
        options = ["--require-hashes", "--disable-pip", "--requirement", str(requirements)]
        return subprocess.run(["pip-audit", *options, *arguments], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
