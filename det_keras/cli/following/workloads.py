"""The reports of a trial as a table: metrics and checkpoints by batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from det_keras import display
from det_keras.cli import render
from det_keras.cli.following.progress import COUNTERS, named_metrics

if TYPE_CHECKING:
    from det_keras.client import Session


# Reports, of which a batch may have two, and a checkpoint.
_MOST = 200


def print_workloads(
    session: Session, trial_id: int, *, show_all: bool = False, title: str | None = None
) -> None:
    """Print the reports of a trial, one row for each batch with a report; of many only the last ones.

    Args:
        session: of the trial's master.
        trial_id: number of the trial.
        show_all: print all of them.
        title: printed above the table; None for no title.
    """
    workloads, total = session.api.trials.workloads(trial_id, most=None if show_all else _MOST)
    columns = ["Batch>", "Epoch>", "Reported", "Training", "Validation", "UUID of the checkpoint", "State"]
    rows = _rows(workloads)
    left = total - len(workloads)
    if left:
        # Of its batch there may be more among those that are left out.
        del rows[0]
    render.print_table(columns, rows, title=title)
    if left:
        print(f"\n{left} earlier reports: `det trial describe {trial_id} --all` prints them too.")


def _rows(workloads: list[dict[str, Any]]) -> list[list[str]]:
    batches: dict[int, dict[str, Any]] = {}
    for workload in workloads:
        for kind in ("training", "validation", "checkpoint"):
            if workload.get(kind):
                batches.setdefault(int(workload[kind]["totalBatches"]), {})[kind] = workload[kind]
    return [_row(batch, reports) for batch, reports in sorted(batches.items())]


def _row(batch: int, reports: dict[str, Any]) -> list[str]:
    metrics = {
        kind: reports[kind]["metrics"]["avgMetrics"] for kind in ("training", "validation") if kind in reports
    }
    epochs = next((found["epochs"] for found in metrics.values() if "epochs" in found), None)
    checkpoint = reports.get("checkpoint") or {}
    times = [report["endTime"] for report in reports.values() if report.get("endTime")]
    return [
        str(batch),
        display.number_text(epochs),
        display.time_text(max(times, default=None)),
        _metrics(metrics.get("training", {})),
        _metrics(metrics.get("validation", {})),
        checkpoint.get("uuid") or "-",
        display.state_text(checkpoint.get("state")),
    ]


def _metrics(metrics: dict[str, Any]) -> str:
    shown = {name: value for name, value in metrics.items() if name not in COUNTERS}
    return "  ".join(named_metrics(shown)) or "-"
