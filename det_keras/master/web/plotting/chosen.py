"""The cards that the writer of a report chose: metrics and expressions, with the settings of a wall.

A wall keeps its settings in its address (`static/settings.js`): cards of the user's own (`static/own_cards.js`), axes,
the shown range, smoothing, hidden runs and the baseline. A saved view is such an address.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import InvalidArgumentError
from det_keras.master.reports.expressions import Expression, Name, check_names, metric_of, parse
from det_keras.master.web.metric_choice import Metric
from det_keras.master.web.wall import AXES, STYLES, card_lines, card_metric

#: Cards of a report.
MOST_CARDS = 20

_MOST_LINES_OF_CARD = 20
_PLACE = re.compile(r" {0,3}!\[(?P<title>[^\]]*)\]\(card:(?P<name>.+)\)\s*")
_FENCE = re.compile(r" {0,3}(```+|~~~+)")


@dataclass(frozen=True)
class Card:
    """A plot of curves.

    Attributes:
        title: its heading.
        lines: metrics and expressions, in any number.
        low: the lowest shown value; None for that of the curves.
        high: the highest shown value.
        log_y: whether the y axis is logarithmic.
    """

    title: str
    lines: tuple[Metric | Expression, ...]
    low: float | None = None
    high: float | None = None
    log_y: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """The lines as texts, by which `card_lines` tells them apart."""
        return tuple(line.text if isinstance(line, Expression) else line.key for line in self.lines)

    @property
    def is_own(self) -> bool:
        """Whether it has lines that no card of the master has."""
        return any(isinstance(line, Expression) for line in self.lines)

    @property
    def metrics(self) -> list[dict[str, str]]:
        """The lines as in a card of a wall; those of an own card take turns in their styles."""
        return [
            {"key": key, "group": "", "name": key, "style": style}
            if self.is_own or isinstance(line, Expression)
            else card_metric(line)
            for line, key, style in zip(self.lines, self.keys, itertools.cycle(STYLES), strict=False)
        ]


@dataclass(frozen=True)
class View:
    """The settings of a wall.

    Attributes:
        own: the cards of the user as JSON: titles, lines and ranges.
        x: ``batches``, ``epochs`` or ``time``.
        log_x: whether the x axis is logarithmic.
        log_y: whether the y axes are.
        smoothing: weight of the moving average; 0 for none.
        start: begin of the shown range; None for all.
        end: end of the shown range.
        baseline: number of the trial with which others are compared; None for none.
        hidden: numbers of trials that are not drawn.
    """

    own: tuple[Mapping[str, Any], ...] = ()
    x: str = "batches"
    log_x: bool = False
    log_y: bool = False
    smoothing: float = 0.0
    start: float | None = None
    end: float | None = None
    baseline: int | None = None
    hidden: frozenset[int] = frozenset()

    @classmethod
    def of(cls, address: str) -> View:
        """Return the settings of an address of a wall.

        Args:
            address: as a saved view has it, or copied from a browser.

        Raises:
            InvalidArgumentError: one of its settings cannot be read.
        """
        try:
            query = parse_qs(urlsplit(address).query)
        except ValueError as error:
            raise InvalidArgumentError(f"The view {address!r} is no address: {error}.") from None
        given = {name: values[0] for name, values in query.items()}
        x = given.get("x", "batches")
        if x not in AXES:
            raise InvalidArgumentError(f"`x` of a view must be one of {', '.join(AXES)}, received {x!r}.")
        try:
            smoothing = float(given.get("smoothing", "0"))
            start, end = map(float, given["range"].split("~")) if "range" in given else (None, None)
            baseline = int(given["baseline"]) if "baseline" in given else None
            hidden = frozenset(int(number) for number in given.get("hidden", "").split(".") if number)
        except ValueError as error:
            raise InvalidArgumentError(f"A setting of the view cannot be read: {error}.") from None
        if not 0 <= smoothing < 1 or not all(
            math.isfinite(edge) for edge in (start, end) if edge is not None
        ):
            raise InvalidArgumentError(
                "`smoothing` of a view must be from 0 to below 1, and `range` have two numbers."
            )
        flags = {name: given.get(name) == "true" for name in ("log_x", "log_y")}
        return cls(
            _own_cards(given.get("own", "[]")),
            x,
            smoothing=smoothing,
            start=start,
            end=end,
            baseline=baseline,
            hidden=hidden,
            **flags,
        )


@dataclass(frozen=True)
class Place:
    """A line of a text in whose place a card is drawn.

    Attributes:
        name: the metric, the expression or the title of the card.
        title: its heading; empty for that of the card.
    """

    name: str
    title: str


def parts_of(text: str) -> list[str | Place]:
    """Return a text in Markdown as its parts between lines such as ``![](card:val_loss)``, and these lines."""
    parts: list[str | Place] = []
    lines: list[str] = []
    fence = ""
    for line in text.splitlines():
        found = _FENCE.match(line)
        if found is not None and (not fence or found[1].startswith(fence)):
            # In a block of code the lines are text.
            fence = "" if fence else found[1]
        place = None if fence else _PLACE.fullmatch(line)
        if place is None:
            lines.append(line)
            continue
        parts += ["\n".join(lines), Place(place["name"].strip(), place["title"].strip())]
        lines = []
    parts.append("\n".join(lines))
    return [part for part in parts if isinstance(part, Place) or part.strip()]


class Cards:
    """Finds cards by what a user calls them.

    Args:
        view: has the user's own cards.
        known: all metrics that the trials reported.
    """

    def __init__(self, view: View, known: Collection[Name]) -> None:
        self._known = known
        self.own = {
            card["title"]: Card(
                card["title"],
                tuple(map(self._line, card["lines"])),
                _number(card.get("low")),
                _number(card.get("high")),
                card.get("log") is True or view.log_y,
            )
            for card in view.own
        }
        self._log_y = view.log_y

    def find(self, name: str, title: str = "") -> Card:
        """Return a card of the user's own by its title, or a card of one metric or expression.

        Raises:
            InvalidArgumentError: there is no such metric; the error has the nearest one.
        """
        card = self.own.get(name) or Card(name, (self._line(name),), log_y=self._log_y)
        return replace(card, title=title or card.title)

    def of_wall(self, cards: Sequence[Mapping[str, Any]]) -> list[Card]:
        """Return the cards of a wall: the searched metric, the user's own, and the others, as in `own_cards.js`."""
        given = {
            card["title"]: Card(
                card["title"],
                tuple(Metric.of(metric["key"]) for metric in card["metrics"]),
                log_y=self._log_y,
            )
            for card in cards
        }
        first = [card["title"] for card in cards if card["isSearched"]]
        added = [title for title in self.own if title not in given]
        rest = [title for title in given if title not in first]
        return [self.own.get(title) or given[title] for title in (*first, *added, *rest)]

    def _line(self, text: str) -> Metric | Expression:
        metric = metric_of(text, self._known)
        if metric is not None:
            return Metric(*metric)
        expression = parse(text)
        check_names(expression, self._known)
        return expression


def card_plot(
    master: EmbeddedMaster, trial_ids: Sequence[int], card: Card, view: View, *, most_points: int
) -> dict[str, Any]:
    """Return a card as the data from which pages draw it: what it is, its settings, and its curves.

    Args:
        master: has the curves.
        trial_ids: numbers of the trials.
        card: the card.
        view: axes, range, smoothing and baseline.
        most_points: maximum number of positions, at least 4.
    """
    settings = {
        "x": view.x,
        "smoothing": view.smoothing,
        "log_x": view.log_x,
        "start": view.start,
        "end": view.end,
    }
    return {
        "spec": {
            "title": card.title,
            "isOwn": card.is_own,
            "metrics": card.metrics,
            "low": card.low,
            "high": card.high,
            "log": card.log_y,
        },
        "x": view.x,
        "logX": view.log_x,
        "range": None if view.start is None else [view.start, view.end],
        "baseline": view.baseline,
        "runs": list(trial_ids),
        "curves": card_lines(master, trial_ids, card.lines, {**settings, "points": most_points}),
    }


def _own_cards(text: str) -> tuple[Mapping[str, Any], ...]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidArgumentError("The cards of the view cannot be read. Was its address cut off?") from None
    for card in found if isinstance(found, list) else [None]:
        title, lines = (card.get("title"), card.get("lines")) if isinstance(card, dict) else (None, None)
        if (
            not isinstance(title, str)
            or not isinstance(lines, list)
            or not all(isinstance(line, str) for line in lines)
        ):
            raise InvalidArgumentError("The cards of the view must have a title and lines.")
        if len(lines) > _MOST_LINES_OF_CARD:
            raise InvalidArgumentError(
                f"A card has at most {_MOST_LINES_OF_CARD} lines, received {len(lines)}."
            )
    return tuple(found)


def _number(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf:
        return float(value)
    return None
