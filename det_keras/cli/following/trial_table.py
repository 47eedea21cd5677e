"""The trials of a search as rows of a table: states, progress, metrics and hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from det_keras.cli.render import printable
from det_keras.display import hparams_text, metric_text, number_text, percent_text, state_text
from det_keras.protocol.metrics import best_first, best_metric
from det_keras.protocol.states import QUEUED, is_over, named

_WAITING = named(QUEUED)


def is_search(experiment: Mapping[str, Any]) -> bool:
    """Return whether an experiment is a search with several trials."""
    return (experiment["config"].get("searcher") or {}).get("name") != "single"


def best_trials_first(
    experiment: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return trials by their best searcher metric; those without the metric are last."""
    searcher = experiment["config"].get("searcher") or {}
    return best_first(
        trials,
        lambda trial: metric_of(experiment, trial),
        smaller_is_better=bool(searcher.get("smaller_is_better", True)),
        otherwise=lambda trial: int(trial["id"]),
    )


def metric_of(experiment: Mapping[str, Any], trial: Mapping[str, Any]) -> float | None:
    """Return the searcher's metric of a trial at its best validation, None before the first."""
    return best_metric(trial, str((experiment["config"].get("searcher") or {}).get("metric")))


def end_line(experiment: Mapping[str, Any], trial: Mapping[str, Any]) -> str:
    """Return one line about an ended trial: ``Trial 3 COMPLETED after epoch 4, val_loss 0.31``."""
    text = f"Trial {trial['id']} {state_text(trial['state'])} after {_progress(trial)}"
    metric = metric_of(experiment, trial)
    return (
        text
        if metric is None
        else f"{text}, {experiment['config']['searcher']['metric']} {metric_text(metric)}"
    )


def trial_rows(
    experiment: Mapping[str, Any], trials: Sequence[Mapping[str, Any]], most: int
) -> tuple[list[list[str]], int]:
    """Return rows of id, state, progress, metric and hyperparameters, and the number of trials without a row.

    Running trials come first, then the others, best first.

    Args:
        experiment: as in the REST API.
        trials: all its trials.
        most: maximum number of rows.
    """
    training = [trial for trial in trials if not is_over(trial["state"]) and trial["state"] != _WAITING]
    others = best_trials_first(experiment, [trial for trial in trials if trial not in training])
    shown = [*training, *others][:most]
    return [_row(experiment, trial) for trial in shown], len(trials) - len(shown)


def trial_table(experiment: Mapping[str, Any], trials: Sequence[Mapping[str, Any]], most: int) -> Any:
    """Return the rows of `trial_rows` as a table of rich, with one line per row on a terminal of any width.

    Args:
        experiment: as in the REST API.
        trials: all its trials.
        most: maximum number of rows.
    """
    # Imported here: importing rich takes longer than most commands.
    from rich.table import Table
    from rich.text import Text

    metric = str((experiment["config"].get("searcher") or {}).get("metric"))
    rows, rest = trial_rows(experiment, trials, most)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    names = ["Trial", "State", "Trained", f"Best {metric}", "Hyperparameters"]
    for index, name in enumerate(names):
        # On a narrow terminal only the hyperparameters are cut off.
        least = (
            max(len(name), *(len(row[index]) for row in rows)) if index < len(names) - 1 and rows else None
        )
        side: Literal["left", "right"] = "right" if index in (0, 3) else "left"
        table.add_column(
            Text(printable(name)), justify=side, no_wrap=True, overflow="ellipsis", min_width=least
        )
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    if rest:
        table.add_row("", "", "", "", Text(f"and {rest} more"))
    return table


def _row(experiment: Mapping[str, Any], trial: Mapping[str, Any]) -> list[str]:
    return [
        str(trial["id"]),
        state_text(trial["state"]),
        _progress(trial),
        metric_text(metric_of(experiment, trial)),
        hparams_text(trial["hparams"]),
    ]


def _progress(trial: Mapping[str, Any]) -> str:
    """Return how much a trial has trained, with the percentage if it is running."""
    metrics = (trial.get("summaryMetrics") or {}).get("validation_metrics") or {}
    training = (trial.get("summaryMetrics") or {}).get("avg_metrics") or {}
    epochs = (training.get("epochs") or metrics.get("epochs") or {}).get("last")
    trained = f"batch {trial['totalBatchesProcessed']}" if epochs is None else f"epoch {number_text(epochs)}"
    fraction = trial.get("progress")
    if is_over(trial["state"]) or not fraction:
        return trained
    return f"{trained} ({percent_text(fraction)})"
