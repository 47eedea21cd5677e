"""Calls about trials: queries of clients and reports of a trial's process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from det_keras.errors import MasterError, MasterUnavailableError
from det_keras.protocol.answers import UNAVAILABLE
from det_keras.protocol.api.transport import Transport
from det_keras.protocol.states import COMPLETED, named
from det_keras.protocol.values import finite, now, timestamp

# Rows of one answer, as the master allows.
_MOST_ROWS = 10_000


class Trials:
    """Calls about trials; every method raises MasterError when the master rejects the call.

    Args:
        transport: sends the calls.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    # Queries of clients.

    def get(self, trial_id: int) -> dict[str, Any]:
        """Return a trial."""
        trial: dict[str, Any] = self._transport.get(_path(trial_id))["trial"]
        return trial

    def table(self, *, columns: str = "", limit: int | None = None, **question: object) -> dict[str, Any]:
        """Return the table of all trials; only our master has the call.

        Args:
            columns: names with commas between them; empty for those that fit the trials that are found.
            limit: maximum number of rows; None for all.
            question: ``q``, ``sort`` and ``group``.
        """
        rows: list[list[Any]] = []
        while True:
            part = _MOST_ROWS if limit is None else min(_MOST_ROWS, limit - len(rows))
            params = {**question, "columns": columns, "offset": len(rows), "limit": part}
            answer: dict[str, Any] = self._transport.get("/api/v1/trials", params=params)
            rows += answer["rows"]
            if not answer["rows"] or len(rows) in (limit, answer["found"]):
                return {**answer, "rows": rows}
            if not question.get("group"):
                # The columns that fit could be others for the next part.
                columns = ",".join(column["key"] for column in answer["columns"])

    def provenance(self, trial_id: int) -> dict[str, Any] | None:
        """Return where a trial ran last, None if it was not recorded; only our master has the call."""
        record: dict[str, Any] | None = self._transport.get(f"{_path(trial_id)}/provenance")["provenance"]
        return record

    def retain_logs(self, trial_id: int, days: int) -> None:
        """Say for how many days the log of a trial is kept; -1 for ever."""
        self._transport.put(f"{_path(trial_id)}/retain_logs", {"trialId": trial_id, "numDays": days})

    def kill(self, trial_id: int) -> None:
        """Kill a trial."""
        self._transport.post(f"{_path(trial_id)}/kill")

    def stop(self, trial_id: int) -> None:
        """End a trial at its next safe point, as completed; only our master has the call."""
        self._transport.post(f"{_path(trial_id)}/stop")

    def extend(self, trial_id: int, length: int) -> None:
        """Let a trial train to a longer length, in the unit of its search; only our master has the call."""
        self._transport.post(f"{_path(trial_id)}/extend", {"length": length})

    def checkpoints(self, trial_id: int, **params: object) -> list[dict[str, Any]]:
        """Return the complete checkpoints of a trial; by default all of them, newest first.

        Args:
            trial_id: number of the trial.
            params: query parameters of the protocol.
        """
        order = {"sortByAttr": "SORT_BY_BATCH_NUMBER", "orderBy": "ORDER_BY_DESC"}
        params = {"states": named(COMPLETED), **order, **params}
        return self.all_checkpoints(trial_id, **params)

    def all_checkpoints(self, trial_id: int, **params: object) -> list[dict[str, Any]]:
        """Return the checkpoints of a trial in every state; `params` are query parameters of the protocol.

        Without `limit` a master returns all of them. Determined's fails at the limit -1, which its other lists accept.
        """
        options = {"patience_s": params.pop("patience_s")} if "patience_s" in params else {}
        found: list[dict[str, Any]] = self._transport.get(
            f"{_path(trial_id)}/checkpoints", params=params, **options
        )["checkpoints"]
        return found

    def workloads(
        self, trial_id: int, *, offset: int = 0, most: int | None = None
    ) -> tuple[list[dict[str, Any]], int]:
        """Return the reports of a trial in the order of batches, and their total number.

        Args:
            trial_id: number of the trial.
            offset: index of the first one.
            most: only so many, the last ones; None for all.
        """
        params: dict[str, object] = {"offset": offset}
        if most is not None:
            params |= {"limit": most, "orderBy": "ORDER_BY_DESC"}
        answer = self._transport.get(f"{_path(trial_id)}/workloads", params=params)
        if most is not None:
            answer["workloads"].reverse()
        return answer["workloads"], int(answer["pagination"]["total"])

    def media(self, trial_id: int, **options: Any) -> dict[str, Any]:
        """Return the list of a trial's media, and the folder of their files; `options` as in `Session.request`."""
        answer: dict[str, Any] = self._transport.get(f"{_path(trial_id)}/media", **options)
        return answer

    def time_series(self, trial_id: int, metric: str, group: str, most_points: int) -> list[dict[str, Any]]:
        """Return the points of a metric's curve, downsampled so that its shape is kept.

        Args:
            trial_id: number of the trial.
            metric: name of the metric.
            group: ``training``, ``validation`` or a custom group.
            most_points: maximum number of points.
        """
        params = {
            "trialIds": trial_id, "metricNames": metric, "group": group, "maxDatapoints": most_points,
        }  # fmt: skip
        (found,) = self._transport.get("/api/v1/trials/time-series", params=params)["trials"]
        return [point for series in found["metrics"] for point in series["data"]]

    def reports(self, trial_id: int, group: str) -> Iterator[dict[str, Any]]:
        """Yield all reports of a group, oldest first, as the master sends them."""
        params = {"group": group, "trialIds": trial_id}
        for part in self._transport.stream("/api/v1/trials/metrics/trial_metrics", params=params):
            yield from part["metrics"]

    # Trials whose scripts run outside of the master.

    def create_unmanaged(
        self, experiment_id: int, hparams: Mapping[str, object], external_id: str | None = None
    ) -> dict[str, Any]:
        """Create a trial of an unmanaged experiment, or return the one with `external_id`.

        Args:
            experiment_id: number of the experiment.
            hparams: hyperparameter values of a new trial.
            external_id: a name chosen by the script; None for a new trial.
        """
        body = {"experimentId": experiment_id, "hparams": finite(hparams), "unmanaged": True}
        if external_id is None:
            answer = self._transport.post("/api/v1/trials", body, repeatable=False)
        else:
            named = {"createTrialRequest": body, "externalTrialId": external_id}
            answer = self._transport.put("/api/v1/trials", named)
        trial: dict[str, Any] = answer["trial"]
        return trial

    def start(self, trial_id: int) -> dict[str, Any]:
        """Begin the next run of an unmanaged trial; return its number and where it can resume."""
        answer: dict[str, Any] = self._transport.post(
            f"{_path(trial_id)}/start", {"trialId": trial_id, "resume": True}
        )
        return answer

    def report_state(self, trial_id: int, state: str | None = None, **options: Any) -> dict[str, Any]:
        """Send a heartbeat of an unmanaged trial, or its state, and return the trial.

        Args:
            trial_id: number of the trial.
            state: such as ``COMPLETED``; None for a heartbeat.
            options: as in `det_keras.client.Session.request`.
        """
        body = {"trialId": trial_id, **({} if state is None else {"state": named(state)})}
        trial: dict[str, Any] = self._transport.patch(_path(trial_id), body, **options)["trial"]
        return trial

    # Reports of a trial's process.

    def start_run(self, trial_id: int, storage: object, **options: Any) -> int | None:
        """Report that a process of the trial starts, and return the id of its checkpoint storage."""
        body = {"runId": trial_id, "checkpointStorage": storage}
        storage_id: int | None = self._transport.post("/api/v1/runs/start", body, **options).get("storageId")
        return storage_id

    def report_progress(self, trial_id: int, fraction: float) -> None:
        """Report how much of the training is done, 0 to 1."""
        self._transport.post(f"{_path(trial_id)}/progress", {"progress": fraction, "isRaw": True})

    def report_status(self, trial_id: int, status: str) -> None:
        """Report what the process is doing."""
        self._transport.post(f"{_path(trial_id)}/runner/metadata", {"state": status})

    def report_metrics(self, trial_id: int, body: Mapping[str, object]) -> None:
        """Report metrics; `metrics_body` builds the body."""
        self._transport.post(f"{_path(trial_id)}/metrics", body)

    def report_metrics_together(
        self, trial_id: int, bodies: Sequence[Mapping[str, object]]
    ) -> dict[int, MasterError | MasterUnavailableError]:
        """Report metrics several times in one call, which only our master has.

        Args:
            trial_id: number of the trial.
            bodies: made by `metrics_body`, in the order of the reports; at most `MOST_TOGETHER`.

        Returns:
            The errors of the reports that the master has not stored, by index.
        """
        answer = self._transport.post(f"{_path(trial_id)}/metrics/together", {"reports": bodies})
        return {
            each["index"]: MasterUnavailableError(each["message"])
            if each["status"] in UNAVAILABLE
            else MasterError(each["status"], each["message"])
            for each in answer["failed"]
        }

    def report_media(self, trial_id: int, body: Mapping[str, object]) -> None:
        """Report a stored item of media."""
        self._transport.post(f"{_path(trial_id)}/media", body)

    def report_early_exit(self, trial_id: int, reason: str, **options: Any) -> None:
        """Report that the trial ends early."""
        self._transport.post(f"{_path(trial_id)}/early_exit", {"reason": reason}, **options)

    def report_provenance(self, trial_id: int, record: Mapping[str, object], **options: Any) -> None:
        """Report where the trial runs and with which packages; only our master has the call."""
        self._transport.post(f"{_path(trial_id)}/provenance", {"provenance": record}, **options)

    def operation(self, trial_id: int, **options: Any) -> tuple[int | None, bool]:
        """Return the length that the searcher requests, None for none, and whether it was reported complete."""
        answer = self._transport.get(f"{_path(trial_id)}/searcher/operation", **options)
        length = ((answer.get("op") or {}).get("validateAfter") or {}).get("length")
        return (None if length is None else int(length)), bool(answer.get("completed"))

    def complete_operation(self, trial_id: int, length: int, metric: object, **options: Any) -> None:
        """Report that the trial reached the requested length.

        Args:
            trial_id: number of the trial.
            length: the length reached, in the searcher's unit.
            metric: value of the searcher's metric at that length.
            options: as in `det_keras.client.Session.request`.
        """
        body = {"op": {"length": length}, "searcherMetric": finite(metric)}
        self._transport.post(f"{_path(trial_id)}/searcher/completed_operation", body, **options)

    def metadata(self, trial_id: int, **options: Any) -> dict[str, Any]:
        """Return the values that `set_metadata` stored, {} if there are none."""
        return self._transport.get(f"/api/v1/runs/{trial_id}/metadata", **options)["metadata"] or {}

    def set_metadata(self, trial_id: int, metadata: Mapping[str, object], **options: Any) -> dict[str, Any]:
        """Replace the trial's stored JSON values, and return the new ones."""
        body = {"runId": trial_id, "metadata": finite(metadata)}
        return self._transport.post(f"/api/v1/runs/{trial_id}/metadata", body, **options)["metadata"] or {}

    @staticmethod
    def metrics_body(
        trial_id: int, run_id: int, group: str, steps: int | None, metrics: Mapping[str, object]
    ) -> dict[str, Any]:
        """Return the body of a report with the current time; it may be sent later.

        Args:
            trial_id: number of the trial.
            run_id: number of the trial's run.
            group: ``training``, ``validation`` or a custom group.
            steps: batches trained so far; None for system metrics.
            metrics: values by name.
        """
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
