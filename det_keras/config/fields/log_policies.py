"""The `log_policies` field: actions for lines in a trial's log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import re2

from det_keras.config.kinds import Choice, Kind, ListOf, Place, Text
from det_keras.config.problems import Problems
from det_keras.config.section import Section, SectionKind, optional
from det_keras.errors import ConfigProblem

#: Used unless the config has an item with the same name.
BUILTIN_LOG_POLICIES: Sequence[Mapping[str, Any]] = (
    {"name": "CUDA OOM", "pattern": ".*CUDA out of memory.*"},
    {"name": "ECC Error", "pattern": ".*uncorrectable ECC error encountered.*"},
)


class _PatternKind(Kind[str]):
    def parse(self, raw: Any, place: Place) -> str:
        pattern = Text(empty=False).parse(raw, place)
        try:
            LogPattern(pattern)
        except LogPatternError as error:
            raise place.error(str(error)) from None
        return pattern


@dataclass(frozen=True)
class LogPolicy(Section):
    """A pattern for each line of a trial's log, and its action.

    Attributes:
        name: the label of a run with a match; None for an item of the old form.
        pattern: a regular expression in RE2's syntax; None disables the policy with this name.
        action: `cancel_retries`, `exclude_node`, or None for only the label.
    """

    name: str | None = optional(Text(empty=False))
    pattern: str | None = optional(_PatternKind())
    action: str | None = optional(Choice(("cancel_retries", "exclude_node")))

    @classmethod
    def check(cls, values: Mapping[str, Any], place: Place) -> Iterator[ConfigProblem]:
        """Yield problems between fields."""
        absent = {name for name in ("name", "pattern", "action") if values.get(name, "") is None}
        if "name" in absent and absent & {"pattern", "action"}:
            yield place.problem("requires a `name`, or both `pattern` and `action`.")


class LogPoliciesKind(ListOf[LogPolicy]):
    """A list of policies with different names."""

    def __init__(self) -> None:
        super().__init__(SectionKind(LogPolicy))

    def parse(self, raw: Any, place: Place) -> tuple[LogPolicy, ...]:
        problems = Problems(_duplicate_names(raw, place) if isinstance(raw, (list, tuple)) else ())
        policies: tuple[LogPolicy, ...] = ()
        with problems.collected():
            policies = super().parse(raw, place)
        problems.raise_if_any()
        return policies


def _duplicate_names(raw: Sequence[Any], place: Place) -> Iterator[ConfigProblem]:
    first: dict[str, int] = {}
    for index, item in enumerate(raw):
        name = item.get("name") if isinstance(item, Mapping) else None
        if not isinstance(name, str):
            continue
        if name in first:
            message = f"{name!r} is already the name of item {first[name]}. Names must differ."
            yield place.item(index).below("name").problem(message)
        first.setdefault(name, index)


_SYNTAX = "https://github.com/google/re2/wiki/Syntax"


# Patterns are matched by RE2, whose time is linear in the length of the line. With Python's `re`, a pattern such as
# ``(a+)+$`` can take hours for one line, and stops every thread of the master for as long.


class LogPatternError(ValueError):
    """The text of a pattern cannot be compiled."""


class LogPattern:
    """A compiled pattern.

    Args:
        text: a regular expression in RE2's syntax.

    Raises:
        LogPatternError: `text` is not in RE2's syntax.
    """

    def __init__(self, text: str) -> None:
        try:
            self._compiled = re2.compile(text, _options())
        except re2.error as error:
            # RE2's message is bytes.
            reason = error.args[0].decode() if error.args else "it is too complex"
            raise LogPatternError(
                f"{text!r} is not a regular expression in RE2's syntax: {reason}. "
                f"RE2 has no backreferences and no lookaround. See {_SYNTAX}"
            ) from None
        except UnicodeEncodeError:
            raise LogPatternError(f"{text!r} is not a regular expression: it is not Unicode text.") from None

    def is_in(self, line: str) -> bool:
        """Return whether a line contains the pattern; ``$`` matches before the line break at the end."""
        return self._compiled.search(_searched(line)) is not None


class LogPatterns:
    """Several patterns, which are searched for in one pass over a line, however many they are.

    Args:
        texts: as of `LogPattern`.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._patterns = [LogPattern(text) for text in texts]
        self._together = re2.Set.SearchSet(_options())
        try:
            for text in texts:
                self._together.Add(text)
            self._together.Compile()
        except re2.error:
            # Together they are too large for RE2's memory.
            self._together = None

    def in_line(self, line: str) -> Iterable[int]:
        """Return which of the patterns a line contains."""
        if self._together is not None:
            # None if there is none.
            found: Iterable[int] | None = self._together.Match(_searched(line)) if self._patterns else None
            return found or ()
        return [number for number, pattern in enumerate(self._patterns) if pattern.is_in(line)]


def _options() -> Any:
    options = re2.Options()
    # Otherwise RE2 also writes its errors to stderr.
    options.log_errors = False
    return options


def _searched(line: str) -> bytes:
    return line.removesuffix("\n").encode(errors="replace")
