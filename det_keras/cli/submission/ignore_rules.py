"""The rules of a `.detignore`, which are those of gitignore.

The translation follows git's own `wildmatch`, including corner cases; the tests compare it with
`git check-ignore`.

Source: gitignore(5), section "Pattern format"; git's wildmatch.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_POSIX_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": " \\t",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "\\x21-\\x7e",
    "lower": "a-z",
    "print": "\\x20-\\x7e",
    "punct": "!-/:-@\\[-`{-~",
    "space": "\\s",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}


class _NeverMatches(Exception):  # noqa: N818 - not an error: git skips such patterns without a message
    """A malformed pattern that matches nothing."""


@dataclass(frozen=True)
class _Rule:
    pattern: re.Pattern[str]
    is_negated: bool
    only_directories: bool
    only_name: bool


class IgnoreRules:
    """The rules of one file; the last rule that matches a path decides.

    Args:
        lines: the lines of the file.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self._rules = [rule for line in lines if (rule := _rule(line)) is not None]

    @classmethod
    def parse(cls, text: str) -> IgnoreRules:
        """Return the rules in the text of a file."""
        return cls(text.removeprefix("\ufeff").split("\n"))

    def is_ignored(self, path: str, *, is_directory: bool) -> bool:
        """Return whether the rules ignore `path` itself.

        Everything inside of an ignored directory is ignored, whatever the rules say about it: callers do not enter such
        a directory.

        Args:
            path: relative to the root, with ``/``.
            is_directory: whether it is a directory.
        """
        name = path.rpartition("/")[2]
        for rule in reversed(self._rules):
            if rule.only_directories and not is_directory:
                continue
            if rule.pattern.fullmatch(name if rule.only_name else path):
                return not rule.is_negated
        return False


def _rule(line: str) -> _Rule | None:
    text = _without_trailing_spaces(line.removesuffix("\r"))
    if not text or text.startswith("#"):
        return None
    is_negated = text.startswith("!")
    text = text[1:] if is_negated else text
    only_directories = text.endswith("/")
    text = text[:-1] if only_directories else text
    only_name = "/" not in text
    text = text.removeprefix("/")
    if not text:
        return None
    try:
        pattern = re.compile(_expression(text), re.DOTALL)
    except _NeverMatches:
        return None
    return _Rule(pattern, is_negated, only_directories, only_name)


def _without_trailing_spaces(line: str) -> str:
    """Remove spaces at the end, except for a space that a backslash protects and those before it."""
    kept = len(line.rstrip(" "))
    backslashes = kept - len(line[:kept].rstrip("\\"))
    return line[: kept + 1] if backslashes % 2 else line[:kept]


def _expression(pattern: str) -> str:
    """Return a regular expression for a pattern."""
    parts = []
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character == "*":
            expression, at = _stars(pattern, at)
        elif character == "?":
            expression, at = "[^/]", at + 1
        elif character == "[":
            expression, at = _character_class(pattern, at + 1)
        elif character == "\\":
            if at + 1 == len(pattern):
                raise _NeverMatches
            expression, at = re.escape(pattern[at + 1]), at + 2
        else:
            expression, at = re.escape(character), at + 1
        parts.append(expression)
    return "".join(parts)


def _stars(pattern: str, start: int) -> tuple[str, int]:
    """Translate one or more stars; exactly two between slashes match any number of directories."""
    end = start
    while end < len(pattern) and pattern[end] == "*":
        end += 1
    rest = pattern[end:]
    # Git compares the text before the first wildcard separately and begins to translate after it, so
    # that `a**/b` means `a` and then `**/b`.
    is_first_wildcard = not any(special in pattern[:start] for special in "*?[\\")
    at_name_start = is_first_wildcard or pattern[start - 1] == "/"
    if end - start < 2 or not at_name_start or not (rest == "" or rest.startswith(("/", "\\/"))):
        return "[^/]*", end
    if rest.startswith("/"):
        return "(?:.*/)?", end + 1
    return ".*", end


def _character_class(pattern: str, start: int) -> tuple[str, int]:
    """Translate the text after a ``[``; return the expression and the position after it."""
    at = start
    is_negated = pattern[at : at + 1] in ("!", "^")
    at += is_negated
    items: list[str] = []
    previous = ""
    is_first = True
    while is_first or pattern[at : at + 1] != "]":
        is_first = False
        if pattern[at : at + 2] == "[:" and (name_end := pattern.find("]", at + 2)) > 0:
            item, at, previous = _posix_class(pattern, at, name_end)
        elif _is_range(pattern, at, previous):
            high, at = _one_character(pattern, at + 1)
            item, previous = _range(previous, high), ""
        else:
            previous, at = _one_character(pattern, at)
            item = re.escape(previous)
        items.append(item)
    # A class never matches the slash between two names, not even a negated class.
    inside = "".join(items)
    return f"(?!/)[{'^' if is_negated else ''}{inside}]", at + 1


def _posix_class(pattern: str, at: int, name_end: int) -> tuple[str, int, str]:
    """Translate ``[:name:]``; return also the character that may begin a range."""
    if pattern[name_end - 1] != ":" or name_end - 1 < at + 2:
        # Not a class name: the bracket is a plain character.
        return re.escape("["), at + 1, "["
    name = pattern[at + 2 : name_end - 1]
    if name not in _POSIX_CLASSES:
        raise _NeverMatches
    return _POSIX_CLASSES[name], name_end + 1, ""


def _is_range(pattern: str, at: int, previous: str) -> bool:
    return bool(previous) and pattern[at : at + 1] == "-" and pattern[at + 1 : at + 2] not in ("", "]")


def _range(low: str, high: str) -> str:
    return f"{re.escape(low)}-{re.escape(high)}" if low <= high else ""


def _one_character(pattern: str, at: int) -> tuple[str, int]:
    at += pattern[at : at + 1] == "\\"
    if at >= len(pattern):
        raise _NeverMatches
    return pattern[at], at + 1
