"""Differences between two texts, two directories and two lists of packages, as plain values.

The differences of files are patches that `git apply` and `patch` accept. `difflib` finds the lines: it is part of
Python, and its time is bounded here by leaving out what both sides begin and end with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Literal

#: Number of lines of a difference that are shown.
MOST_LINES = 2000
_CONTEXT = 3
# The product of the numbers of lines, up to which lines are matched. It takes a second at most.
_MOST_PAIRS = 4_000_000
_MARKS = {"+": "added", "-": "removed", "@": "place", "\\": "note"}
_HEADS = ("diff --git ", "--- ", "+++ ", "index ", "new file ", "deleted file ", "old mode ", "new mode ",
          "similarity ", "rename ", "Binary files ")  # fmt: skip

_Opcode = tuple[Literal["replace", "delete", "insert", "equal"], int, int, int, int]


@dataclass(frozen=True)
class FileDifference:
    """A file that differs.

    Attributes:
        name: its path.
        kind: ``changed``, ``added`` or ``removed``.
        patch: the difference; empty if it is not text.
        is_text: whether both sides are text.
    """

    name: str
    kind: str
    patch: str
    is_text: bool = True


@dataclass(frozen=True)
class PackageDifference:
    """A package that differs.

    Attributes:
        name: its name.
        before: the version on the first side; None if it is not installed.
        after: the version on the second side.
    """

    name: str
    before: str | None
    after: str | None


def patch(name: str, before: str | None, after: str | None) -> str:
    """Return the difference between two texts in the unified format of git; empty if they are equal.

    Args:
        name: path of the file, for the head.
        before: the first side; None if there is no such file.
        after: the second side.
    """
    if before == after:
        return ""
    old, new = _quoted("a/" + name), _quoted("b/" + name)
    head = [f"diff --git {old} {new}\n"]
    if before is None:
        head.append("new file mode 100644\n")
    elif after is None:
        head.append("deleted file mode 100644\n")
    hunks = list(_hunks(_lines(before or ""), _lines(after or "")))
    if hunks:
        # A tab ends a name with a space in it.
        end = "\t\n" if " " in name else "\n"
        head.append("--- " + ("/dev/null\n" if before is None else old + end))
        head.append("+++ " + ("/dev/null\n" if after is None else new + end))
    return "".join(head + hunks)


def file_differences(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> list[FileDifference]:
    """Return the files that differ between two directories, by path.

    Args:
        before: content of each file of the first directory.
        after: content of each file of the second directory.
    """
    found = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        kind = "added" if old is None else "removed" if new is None else "changed"
        texts = [None if content is None else _text(content) for content in (old, new)]
        is_text = (old is None) == (texts[0] is None) and (new is None) == (texts[1] is None)
        found.append(FileDifference(name, kind, patch(name, *texts) if is_text else "", is_text))
    return found


def package_differences(before: Sequence[str], after: Sequence[str]) -> list[PackageDifference]:
    """Return the packages that differ between two lists of ``name==version``, by name."""
    old, new = _versions(before), _versions(after)
    return [
        PackageDifference(name, old.get(name), new.get(name))
        for name in sorted(old.keys() | new.keys(), key=str.lower)
        if old.get(name) != new.get(name)
    ]


def marked_lines(text: str) -> list[tuple[str, str]]:
    """Return the lines of a patch with their kinds: ``added``, ``removed``, ``place``, ``head``, ``note`` or empty."""
    return list(_marked(text))


def side_by_side(lines: Iterable[tuple[str, str]]) -> list[tuple[str | None, str | None, bool]]:
    """Return the marked lines of a patch in two columns.

    Args:
        lines: as `marked_lines` returns them.

    Returns:
        For each row the line of the first and of the second side, None where a side has none, and whether they differ.
        A row of two None separates parts that are apart.
    """
    rows: list[tuple[str | None, str | None, bool]] = []
    sides: dict[str, list[str]] = {"removed": [], "added": []}
    # The last entry ends the last run of changed lines.
    for kind, line in [*lines, ("end", "")]:
        if kind in sides:
            sides[kind].append(line[1:])
            continue
        rows += [(old, new, True) for old, new in zip_longest(sides["removed"], sides["added"])]
        sides = {"removed": [], "added": []}
        if kind == "place" and rows:
            rows.append((None, None, False))
        elif kind == "":
            rows.append((line[1:], line[1:], False))
    return rows


def _marked(text: str) -> Iterator[tuple[str, str]]:
    is_head = True
    for line in text.removesuffix("\n").split("\n") if text else ():
        if line.startswith("diff --git "):
            is_head = True
        elif line.startswith("@@ "):
            is_head = False
        # In a hunk, a removed line may begin as a head does: `--- ` is a removed `-- `.
        yield ("head" if is_head and line.startswith(_HEADS) else _MARKS.get(line[:1], "")), line


def _hunks(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    for group in _Matched(_opcodes(before, after)).get_grouped_opcodes(_CONTEXT):
        (_, i, _, j, _), (_, _, i_end, _, j_end) = group[0], group[-1]
        yield f"@@ -{_range(i, i_end)} +{_range(j, j_end)} @@\n"
        for tag, a, a_end, b, b_end in group:
            if tag == "equal":
                yield from (_marked_line(" ", line) for line in before[a:a_end])
                continue
            yield from (_marked_line("-", line) for line in before[a:a_end])
            yield from (_marked_line("+", line) for line in after[b:b_end])


class _Matched(SequenceMatcher[str]):
    """Groups lines that were matched elsewhere."""

    def __init__(self, opcodes: list[_Opcode]) -> None:
        super().__init__()
        self._found = opcodes

    def get_opcodes(self) -> list[_Opcode]:
        return self._found


def _opcodes(before: Sequence[str], after: Sequence[str]) -> list[_Opcode]:
    """Return how the first side becomes the second, as `SequenceMatcher.get_opcodes` does."""
    most = min(len(before), len(after))
    start = next((n for n in range(most) if before[n] != after[n]), most)
    end = next((n for n in range(most - start) if before[-1 - n] != after[-1 - n]), most - start)
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    if len(old) * len(new) <= _MOST_PAIRS:
        middle = SequenceMatcher(None, old, new).get_opcodes()
    else:
        middle = [("replace", 0, len(old), 0, len(new))]
    whole: list[_Opcode] = [("equal", 0, start, 0, start)] if start else []
    whole += [(tag, a + start, b + start, c + start, d + start) for tag, a, b, c, d in middle]
    if end:
        whole.append(("equal", len(before) - end, len(before), len(after) - end, len(after)))
    return whole


def _range(start: int, stop: int) -> str:
    length = stop - start
    # An empty range is named by the line before it.
    begin = start + 1 if length else start
    return str(begin) if length == 1 else f"{begin},{length}"


def _marked_line(mark: str, line: str) -> str:
    return f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"


def _lines(text: str) -> list[str]:
    """Return the lines with their ends: only a line feed ends one, for git as well."""
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _quoted(name: str) -> str:
    """Return a path as git writes it: with quotes if it has characters that would end it."""
    if not any(character in '"\\' or not character.isprintable() for character in name):
        return name
    octal = (
        "\\" + chr(byte) if byte in b'"\\' else chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"
        for byte in name.encode()
    )
    return '"' + "".join(octal) + '"'


def _text(content: bytes) -> str | None:
    if b"\0" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _versions(packages: Sequence[str]) -> dict[str, str]:
    return {name: version for name, _, version in (package.partition("==") for package in packages)}
