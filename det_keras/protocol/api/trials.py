"""Calls about trials: what clients ask, and what a trial's own process reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from det_keras.protocol.api.transport import Transport
from det_keras.protocol.values import finite, now, timestamp

__all__ = ["Trials"]


class Trials:
    """Calls about trials; every method raises MasterError where the master refuses.

    Args:
        transport: sends them.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    # What clients ask.

    def get(self, trial_id: int) -> dict[str, Any]:
        """Return a trial."""
        trial: dict[str, Any] = self._transport.get(_path(trial_id))["trial"]
        return trial

    def kill(self, trial_id: int) -> None:
        """Kill a trial."""
        self._transport.post(f"{_path(trial_id)}/kill")

    def checkpoints(self, trial_id: int, **params: Any) -> list[dict[str, Any]]:
        """Return the complete checkpoints of a trial, all of them and the newest first by default.

        Args:
            trial_id: its number.
            params: as the protocol has them.
        """
        order = {"sortByAttr": "SORT_BY_BATCH_NUMBER", "orderBy": "ORDER_BY_DESC"}
        params = {"states": "STATE_COMPLETED", "limit": -1, **order, **params}
        return self.all_checkpoints(trial_id, **params)

    def all_checkpoints(self, trial_id: int, **params: Any) -> list[dict[str, Any]]:
        """Return the checkpoints of a trial in every state; `params` as the protocol has them."""
        options = {"patience_s": params.pop("patience_s")} if "patience_s" in params else {}
        found: list[dict[str, Any]] = self._transport.get(
            f"{_path(trial_id)}/checkpoints", params=params, **options
        )["checkpoints"]
        return found

    def workloads(self, trial_id: int, *, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
        """Return the reports of a trial from the `offset`-th on, and how many there are in all."""
        answer = self._transport.get(f"{_path(trial_id)}/workloads", params={"offset": offset})
        return answer["workloads"], int(answer["pagination"]["total"])

    def time_series(self, trial_id: int, metric: str, group: str, most_points: int) -> list[dict[str, Any]]:
        """Return the points of a metric's curve, thinned so that it looks the same."""
        params = {
            "trialIds": trial_id, "metricNames": metric, "group": group, "maxDatapoints": most_points,
        }  # fmt: skip
        (found,) = self._transport.get("/api/v1/trials/time-series", params=params)["trials"]
        return [point for series in found["metrics"] for point in series["data"]]

    # What a trial's process reports.

    def start_run(self, trial_id: int, storage: Any, **options: Any) -> int | None:
        """Say that a process of the trial begins, and return the id of its checkpoint storage."""
        body = {"runId": trial_id, "checkpointStorage": storage}
        storage_id: int | None = self._transport.post("/api/v1/runs/start", body, **options).get("storageId")
        return storage_id

    def report_progress(self, trial_id: int, fraction: float) -> None:
        """Report how much of the training is done, 0 to 1."""
        self._transport.post(f"{_path(trial_id)}/progress", {"progress": fraction, "isRaw": True})

    def report_status(self, trial_id: int, status: str) -> None:
        """Report what the process is doing."""
        self._transport.post(f"{_path(trial_id)}/runner/metadata", {"state": status})

    def report_metrics(self, trial_id: int, body: Mapping[str, Any]) -> None:
        """Report metrics; `metrics_body` makes the body."""
        self._transport.post(f"{_path(trial_id)}/metrics", body)

    def report_early_exit(self, trial_id: int, reason: str, **options: Any) -> None:
        """Report that the trial ends before its time."""
        self._transport.post(f"{_path(trial_id)}/early_exit", {"reason": reason}, **options)

    def operation(self, trial_id: int, **options: Any) -> tuple[int | None, bool]:
        """Return the length that the searcher wants, None for none, and whether it was reported complete."""
        answer = self._transport.get(f"{_path(trial_id)}/searcher/operation", **options)
        length = ((answer.get("op") or {}).get("validateAfter") or {}).get("length")
        return (None if length is None else int(length)), bool(answer.get("completed"))

    def complete_operation(self, trial_id: int, length: int, metric: Any, **options: Any) -> None:
        """Report that the trial reached a length, with the searcher's metric there."""
        body = {"op": {"length": length}, "searcherMetric": finite(metric)}
        self._transport.post(f"{_path(trial_id)}/searcher/completed_operation", body, **options)

    def metadata(self, trial_id: int, **options: Any) -> dict[str, Any]:
        """Return what `set_metadata` stored, {} if nothing was."""
        return self._transport.get(f"/api/v1/runs/{trial_id}/metadata", **options)["metadata"] or {}

    def set_metadata(self, trial_id: int, metadata: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """Store JSON values for the trial in place of those stored before, and return them."""
        body = {"runId": trial_id, "metadata": finite(metadata)}
        return self._transport.post(f"/api/v1/runs/{trial_id}/metadata", body, **options)["metadata"] or {}

    @staticmethod
    def metrics_body(
        trial_id: int, run_id: int, group: str, steps: int | None, metrics: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the body of a report that is made now and may be sent later."""
        report = {
            "trialId": trial_id,
            "trialRunId": run_id,
            "stepsCompleted": steps,
            "reportTime": timestamp(now()),
            "metrics": {"avgMetrics": finite(metrics)},
        }
        return {"group": group, "metrics": report}


def _path(trial_id: int) -> str:
    return f"/api/v1/trials/{trial_id}"
