"""The `log_policies` field: actions for lines in a trial's log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from det_keras.config.fields.log_pattern import LogPattern, LogPatternError
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
