"""The training scripts of tests/scripts, the diffs that convert them, and the list of these in the docs.

Each script exists as plain Keras, and as a unified diff that turns it into a det_keras script.

    python tests/keras/script_diffs.py    # writes the list in docs/from-plain-keras.md again
"""

from __future__ import annotations

import ast
import re
from itertools import groupby
from pathlib import Path

__all__ = [
    "PAGE",
    "SCRIPTS",
    "apply_diff",
    "convert",
    "count_changed_lines",
    "read_diff",
    "read_script",
    "with_list",
]

_ROOT = Path(__file__).resolve().parents[2]
_FOLDER = _ROOT / "tests" / "scripts"
PAGE = _ROOT / "docs" / "from-plain-keras.md"
SCRIPTS: list[str] = sorted(path.stem for path in _FOLDER.glob("*.py"))

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")
_LIST = re.compile(r"(?<=<!-- scripts -->\n).*(?=<!-- end of scripts -->)", re.DOTALL)


def read_script(name: str) -> str:
    """Return the plain Keras form of a script."""
    return (_FOLDER / f"{name}.py").read_text(encoding="utf-8")


def read_diff(name: str) -> str:
    """Return the unified diff that makes a det_keras script of it."""
    return (_FOLDER / f"{name}.diff").read_text(encoding="utf-8")


def apply_diff(text: str, diff: str) -> str:
    """Return `text` as a unified diff changes it.

    Raises:
        ValueError: a line that the diff removes or keeps is not at its place in `text`.
    """
    lines, made, position = text.splitlines(), [], 0
    for line in diff.splitlines():
        if line.startswith(("---", "+++")):
            continue
        if hunk := _HUNK.match(line):
            # Of a hunk that only adds, the number is that of the line before.
            start = int(hunk[1]) - (hunk[2] != "0")
            made += lines[position:start]
            position = start
        elif line.startswith("+"):
            made.append(line[1:])
        else:
            if lines[position : position + 1] != [line[1:]]:
                raise ValueError(f"Line {position + 1} is not {line[1:]!r}, as the diff says.")
            made += [line[1:]] if line.startswith(" ") else []
            position += 1
    return "\n".join([*made, *lines[position:], ""])


def count_changed_lines(diff: str) -> int:
    """Return how many lines a diff adds, removes or replaces; a replaced line counts once, an empty one not."""
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++"))]
    kinds = [line[:1] for line in lines if line not in ("+", "-")]
    changed = [list(lines) for is_changed, lines in groupby(kinds, lambda kind: kind in "+-") if is_changed]
    return sum(max(lines.count("+"), lines.count("-")) for lines in changed)


def convert(name: str) -> str:
    """Return the det_keras form of a script."""
    return apply_diff(read_script(name), read_diff(name))


def with_list(page: str) -> str:
    """Return the page with a fresh list of the scripts and their diffs."""
    items = "".join(_item(name) for name in SCRIPTS)
    return _LIST.sub(lambda found: f"\n{items}", page)


def _item(name: str) -> str:
    title = (ast.get_docstring(ast.parse(read_script(name))) or "").splitlines()[0].rstrip(".")
    diff = read_diff(name)
    lines = "\n".join(line for line in diff.splitlines() if not line.startswith(("---", "+++")))
    return (
        f"<details>\n<summary><code>{name}.py</code>: {title} ({count_changed_lines(diff)} lines)</summary>\n\n"
        f"```diff\n{lines}\n```\n\n</details>\n\n"
    )


if __name__ == "__main__":
    PAGE.write_text(with_list(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
