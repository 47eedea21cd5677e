"""The report of an experiment as one file, which needs no master."""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Request
from markupsafe import Markup
from pydantic import Field
from starlette.responses import HTMLResponse, Response

from det_keras.config.secrets import without_secret_variables
from det_keras.config.yaml_text import dump_yaml
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import FailedPreconditionError, InvalidArgumentError
from det_keras.master.server.calls import MasterDep, body
from det_keras.master.web.experiments import varied
from det_keras.master.web.findings import findings
from det_keras.master.web.metric_choice import metric_choices, metrics_of
from det_keras.master.web.plotting.chosen import MOST_CARDS, Card, Cards, Place, View, card_plot, parts_of
from det_keras.master.web.plotting.picture import picture
from det_keras.master.web.plotting.searched import best_trials_first, rungs_plot, search_plots
from det_keras.master.web.rendering import render, static_files
from det_keras.master.web.rest import Rest
from det_keras.master.web.scripts import bundle
from det_keras.master.web.wall import card_lines, cards
from det_keras.master.wire import Message
from det_keras.protocol.values import now, timestamp

router = APIRouter(prefix="/experiments", include_in_schema=False)

#: Maximum number of runs, of which the best are shown.
MOST_LINES = 50
# Each metric is a plot of up to 50 curves, and the file should be small enough for mail.
_MOST_METRICS = 8
_MOST_ROWS = 200
# In all plots of hyperparameters together, and in that of the rungs. Each is a few dozen bytes.
_MOST_DOTS = 600
# Of each curve. A report with many curves has fewer points of each, so that the file stays below 1.5 MB.
_MOST_POINTS = 800
_LEAST_POINTS = 80
_MOST_POINTS_IN_ALL = 80_000
# Sections of the config that a report without a login shows.
_SHARED_SECTIONS = (
    "hyperparameters",
    "searcher",
    "records_per_epoch",
    "min_validation_period",
    "reproducibility",
)
_LONGEST_VIEW = 10_000


@dataclass(frozen=True)
class _Part:
    """A part of a report: a text, or a figure with its title, its number, and what `report.js` draws of it."""

    text: str = ""
    title: str = ""
    figure: Mapping[str, Any] | None = None
    number: int = 0


class ReportBody(Message):
    """The request for a report with a text, or of chosen cards."""

    text: Annotated[str, Field(max_length=200_000)] = ""
    # Metrics and expressions; null for the cards of the wall.
    cards: Annotated[list[str], Field(max_length=MOST_CARDS)] | None = None
    # The address of a wall.
    view: Annotated[str, Field(max_length=_LONGEST_VIEW)] = ""


@router.get("/{experiment_id}/report")
async def report(master: MasterDep, request: Request, experiment_id: int) -> Response:
    """Return the report of an experiment as one page that loads no other files.

    Args:
        master: has the curves.
        request: the page's request.
        experiment_id: number of the experiment.
    """
    return await _report(master, request, experiment_id, ReportBody())


@router.post("/{experiment_id}/report")
async def report_with_text(
    master: MasterDep,
    request: Request,
    experiment_id: int,
    wanted: Annotated[ReportBody, body(ReportBody)],
) -> Response:
    """Return the report of an experiment with a text or of cards of the caller's choice, which are not stored.

    Args:
        master: has the curves.
        request: the page's request.
        experiment_id: number of the experiment.
        wanted: the text in Markdown, and the cards.

    Raises:
        InvalidArgumentError: there is no such metric, or the view cannot be read.
    """
    return await _report(master, request, experiment_id, wanted)


async def _report(
    master: EmbeddedMaster, request: Request, experiment_id: int, wanted: ReportBody
) -> Response:
    facts = await _facts(request, experiment_id)
    page, policy = await anyio.to_thread.run_sync(report_page, master, facts, wanted)
    name = {"Content-Disposition": f'inline; filename="experiment-{experiment_id}.html"'}
    return HTMLResponse(page, headers={**report_headers(policy), **name})


def report_headers(policy: str) -> dict[str, str]:
    """Return the headers of a report with the policy that belongs to it."""
    return {
        "Content-Security-Policy": f"{policy}; frame-ancestors 'none'",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }


@router.get("/{experiment_id}/report.png")
async def curves_picture(master: MasterDep, request: Request, experiment_id: int) -> Response:
    """Return the curves of an experiment's searcher metric as a PNG picture.

    Args:
        master: has the curves.
        request: the page's request.
        experiment_id: number of the experiment.

    Raises:
        FailedPreconditionError: the experiment has reported no metric yet.
        UnimplementedError: Kaleido or a browser is missing.
    """
    facts = await _facts(request, experiment_id)
    if not facts["metrics"]:
        raise FailedPreconditionError(f"Experiment {experiment_id} has reported no metric yet.")
    content = await anyio.to_thread.run_sync(_picture, master, facts)
    return Response(content, media_type="image/png", headers={"Cache-Control": "no-store"})


async def _facts(request: Request, experiment_id: int) -> dict[str, Any]:
    rest = Rest(request)
    shown, trials, rungs = await asyncio.gather(
        rest.get(f"/experiments/{experiment_id}"),
        rest.get(f"/experiments/{experiment_id}/trials", limit=-1),
        rest.get(f"/experiments/{experiment_id}/searcher/rungs"),
    )
    return facts_of(shown["experiment"], trials["trials"], rungs)


def facts_of(
    experiment: Mapping[str, Any], trials: Sequence[Mapping[str, Any]], rungs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the data of a report, best trials first.

    Args:
        experiment: the `Experiment` of the REST API.
        trials: its trials.
        rungs: the answer of the REST API about the rungs of its search.
    """
    ordered = best_trials_first(trials, experiment)
    return {
        "experiment": experiment,
        "trials": ordered,
        "rungs": rungs,
        "metrics": metric_choices(ordered, experiment["searcherMetric"]),
        "cards": cards(metrics_of(ordered), experiment["searcherMetric"]),
    }


def report_page(
    master: EmbeddedMaster,
    facts: Mapping[str, Any],
    wanted: ReportBody | None = None,
    *,
    is_shared: bool = False,
) -> tuple[str, str]:
    """Return a report, and the policy that allows only its own script.

    Args:
        master: has the curves.
        facts: what `facts_of` returns.
        wanted: the text with which the report begins, and the cards; None for no text and the cards of the wall.
        is_shared: whether it is for readers without a login, who see only the search of the config.

    Raises:
        InvalidArgumentError: a card is wanted whose metric is unknown, or the view cannot be read.
    """
    wanted = wanted or ReportBody()
    text_parts, shown, left_out = _drawn(master, facts, wanted)
    drawing = _drawing()
    policy = (
        f"default-src 'none'; script-src {_fingerprint(drawing)}; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    experiment, trials = facts["experiment"], facts["trials"]
    config = experiment["config"]
    config = _search_of(config) if is_shared else without_secret_variables(config)
    values = {
        "experiment": experiment,
        "text_parts": text_parts,
        "findings": findings(experiment, trials, facts["rungs"]["brackets"]),
        "trials": trials[:_MOST_ROWS],
        "trials_left_out": max(0, len(trials) - _MOST_ROWS),
        "states": Counter(trial["state"] for trial in trials),
        "varied": varied(trials),
        "figures": shown,
        "cards_left_out": left_out,
        "has_metrics": bool(facts["metrics"]),
        "config": dump_yaml(config),
        "is_shared": is_shared,
        "written": timestamp(now()),
        "policy": policy,
        # Not escaped: files of this package, not of a user.
        "drawing": Markup(drawing),
        "style": Markup(_style()),
    }
    return render("report.html", values), policy


def _search_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a config is for readers without a login: neither commands, paths nor variables."""
    shown = {name: config[name] for name in _SHARED_SECTIONS if config.get(name) is not None}
    searcher = shown.get("searcher", {})
    # Of other experiments.
    return shown | {
        "searcher": {name: value for name, value in searcher.items() if not name.startswith("source_")}
    }


def _drawn(
    master: EmbeddedMaster, facts: Mapping[str, Any], wanted: ReportBody
) -> tuple[list[_Part], list[_Part], list[str]]:
    """Return the parts of the text with the cards in it, the figures below, and the titles of omitted cards."""
    parts = parts_of(wanted.text)
    view = View.of(wanted.view)
    known = Cards(view, {(metric.group, metric.name) for metric in facts["metrics"]})
    placed = [known.find(part.name, part.title) for part in parts if isinstance(part, Place)]
    left_out: list[str] = []
    if wanted.cards is None:
        cards = known.of_wall(facts["cards"])
        cards, left_out = cards[:_MOST_METRICS], [card.title for card in cards[_MOST_METRICS:]]
    else:
        cards = [known.find(name) for name in wanted.cards]
    # A card of the text is not drawn twice.
    cards = [card for card in cards if card.keys not in {one.keys for one in placed}]
    if len(placed) + len(cards) > MOST_CARDS:
        raise InvalidArgumentError(
            f"A report has at most {MOST_CARDS} cards, received {len(placed) + len(cards)}."
        )
    drawn = _card_figures(master, facts["trials"], [*placed, *cards], view)
    if wanted.cards is None:
        drawn += [_Part(title=title, figure=figure) for title, figure in _search_figures(facts)]
    drawn = [replace(part, number=number) for number, part in enumerate(drawn, start=1)]
    of_text = iter(drawn[: len(placed)])
    text_parts = [_Part(text=part) if isinstance(part, str) else next(of_text) for part in parts]
    return text_parts, drawn[len(placed) :], left_out


def _card_figures(
    master: EmbeddedMaster, trials: Sequence[Mapping[str, Any]], cards: Sequence[Card], view: View
) -> list[_Part]:
    shown = [trial["id"] for trial in trials if trial["id"] not in view.hidden]
    ids = shown[:MOST_LINES]
    if view.baseline is not None and view.baseline not in ids:
        if view.baseline not in {trial["id"] for trial in trials}:
            raise InvalidArgumentError(
                f"The baseline of the view, trial {view.baseline}, is not of this experiment."
            )
        ids = [*ids[: MOST_LINES - 1], view.baseline]
    count = max(1, len(ids) * sum(len(card.lines) for card in cards))
    most_points = min(_MOST_POINTS, max(_LEAST_POINTS, _MOST_POINTS_IN_ALL // count))
    return [
        _Part(
            title=_isolated(card.title),
            figure={"curves": card_plot(master, ids, card, view, most_points=most_points)},
        )
        for card in cards
    ]


def _search_figures(facts: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the titled figures of the search of an experiment."""
    experiment, trials = facts["experiment"], facts["trials"]
    brackets = facts["rungs"]["brackets"]
    result = []
    name = _isolated(experiment["searcherMetric"])
    if sum(trial["searcherMetricValue"] is not None for trial in trials) > 1:
        most = max(MOST_LINES, _MOST_DOTS // max(1, len(varied(trials))))
        known = sum(trial["searcherMetricValue"] is not None for trial in trials)
        which = f" (the best {most:,} of {known:,} trials)" if known > most else ""
        found = search_plots(experiment, trials, brackets, most=most)
        result.append((f"{name} against each hyperparameter{which}", {"effects": found}))
        result.append((f"All hyperparameters and {name}{which}", {"parallel": found}))
    if brackets:
        counts = [len(rung["results"]) for bracket in brackets for rung in bracket["rungs"]]
        most = max(MOST_LINES, _MOST_DOTS // max(1, len(counts)))
        which = f" (the best {most:,} of each)" if max(counts, default=0) > most else ""
        result.append(
            (f"{name} at the rungs{which}", {"rungs": rungs_plot(experiment, facts["rungs"], most=most)})
        )
    return result


def _isolated(name: str) -> str:
    """Return a name whose writing direction does not affect its surroundings."""
    return f"\u2068{name}\u2069"


@functools.cache
def _drawing() -> str:
    """Return the report's own script, escaped for HTML."""
    return _inline("\n".join((_static_text("uplot.min.js"), bundle("report.js"))))


@functools.cache
def _style() -> str:
    return "\n".join(map(_static_text, ("style.css", "wall.css", "uplot.min.css")))


def _static_text(name: str) -> str:
    return static_files()[name].read_text(encoding="utf-8")


def _inline(script: str) -> str:
    # Unchanged in JavaScript, these would end the element or begin a comment in HTML.
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


@functools.lru_cache(maxsize=4)
def _fingerprint(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _picture(master: EmbeddedMaster, facts: Mapping[str, Any]) -> bytes:
    ids = [trial["id"] for trial in facts["trials"][:MOST_LINES]]
    metric = facts["metrics"][0]
    view = {"x": "batches", "smoothing": 0.0, "log_x": False, "start": None, "end": None}
    lines = card_lines(master, ids, [metric], {**view, "points": _MOST_POINTS})
    return picture(lines, metric.name, static_files()["plotly-basic.min.js"])
