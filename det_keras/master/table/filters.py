"""The language of filters: ``optimizer=adam learning_rate<1e-2 val_accuracy>.8 state:completed words``.

All terms must hold. A term is a name, an operator and a value. Every other word, and what is in quotes, is searched in
the names and labels of the experiment. Tables and the lists of runs beside walls use it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

RowT = TypeVar("RowT")
_WORD = re.compile(r'(?:[^\s"]|"[^"]*")+')
_TERM = re.compile(r"([^\s=<>!:]+)(<=|>=|!=|=|<|>|:)(.+)", re.DOTALL)
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    ":": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Term:
    """One condition.

    Attributes:
        name: what is compared; empty for a word that is searched.
        operator: one of ``=``, ``!=``, ``<``, ``<=``, ``>``, ``>=`` and ``:`` (texts that contain it, equal numbers);
            calls of the REST API also have ``!:`` (texts that do not contain it), ``?`` (no value) and ``!?``.
        wanted: the value, or the word.
    """

    name: str
    operator: str
    wanted: str

    def holds(self, value: Any) -> bool:
        """Return whether a value fulfils the condition; of a list, whether one does (with ``!=``, whether all do)."""
        if self.operator in ("?", "!?"):
            return (value in (None, "", [], ())) == (self.operator == "?")
        if self.operator == "!:":
            return not Term(self.name, ":", self.wanted).holds(value)
        if isinstance(value, list | tuple):
            holding = (self._holds(item) for item in value)
            return all(holding) if self.operator == "!=" else any(holding)
        return self._holds(value)

    def _holds(self, value: Any) -> bool:
        if value is None:
            return self.operator == "!="
        number, wanted = None if isinstance(value, bool) else _number(value), _number(self.wanted)
        if number is not None and wanted is not None:
            return _COMPARISONS[self.operator](number, wanted)
        left, right = str(value).lower(), self.wanted.lower()
        return right in left if self.operator == ":" else _COMPARISONS[self.operator](left, right)


@dataclass(frozen=True)
class Group:
    """Conditions of which all must hold, or at least one.

    Attributes:
        conditions: terms, and groups of them; a group without any holds.
        is_any: whether one is enough.
    """

    conditions: tuple[Term | Group, ...] = ()
    is_any: bool = False

    def terms(self) -> Iterator[Term]:
        """Yield all terms, also those of groups in this one."""
        for condition in self.conditions:
            if isinstance(condition, Term):
                yield condition
            else:
                yield from condition.terms()

    def test(self, value_of: Callable[[Term], Callable[[RowT], Any]]) -> Callable[[RowT], bool]:
        """Return a function that says whether a row fulfils the conditions.

        Args:
            value_of: returns the function from a row to the value that a term compares.
        """
        tests = [
            condition.test(value_of)
            if isinstance(condition, Group)
            else _test(condition, value_of(condition))
            for condition in self.conditions
        ]
        if not tests:
            return lambda _: True
        if self.is_any:
            return lambda row: any(test(row) for test in tests)
        return lambda row: all(test(row) for test in tests)


def _test(term: Term, value: Callable[[RowT], Any]) -> Callable[[RowT], bool]:
    return lambda row: term.holds(value(row))


def parse(text: str) -> list[Term]:
    """Return the terms of a filter.

    Args:
        text: as a user writes it; empty for no condition.

    Example:
        ```pycon
        >>> parse("val_accuracy>.9 mnist")
        [Term(name='val_accuracy', operator='>', wanted='.9'), Term(name='', operator=':', wanted='mnist')]
        ```
    """
    return [_term(word) for word in _WORD.findall(text)]


def names_of(terms: Iterable[Term]) -> list[str]:
    """Return the names that terms compare."""
    return [term.name for term in terms if term.name]


def _term(word: str) -> Term:
    found = _TERM.fullmatch(word.replace('"', "")) if not word.startswith('"') else None
    return Term("", ":", word.replace('"', "")) if found is None else Term(*found.groups())


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
