"""Calls about experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from det_keras.protocol.api.transport import Transport

_PATH = "/api/v1/experiments"
# The body contains the files, and a master unpacks them before it answers.
_SUBMISSION_TIMEOUT_S = 300.0


class Experiments:
    """Calls about experiments; every method raises MasterError when the master rejects the call.

    Args:
        transport: sends the calls.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self, experiment_id: int) -> dict[str, Any]:
        """Return an experiment with its config, without secrets."""
        answer = self._transport.get(f"{_PATH}/{experiment_id}")
        experiment: dict[str, Any] = answer["experiment"]
        return {**experiment, "config": experiment.get("config") or answer.get("config") or {}}

    def all(self, **params: object) -> list[dict[str, Any]]:
        """Return experiments; `params` are query parameters of the protocol."""
        found: list[dict[str, Any]] = self._transport.get(_PATH, params=params)["experiments"]
        return found

    def create(
        self,
        config: str,
        files: Sequence[Mapping[str, object]],
        *,
        activate: bool,
        provenance: Mapping[str, object] | None = None,
    ) -> dict[str, Any]:
        """Create an experiment and return the answer with its notices.

        Args:
            config: YAML text.
            files: of the context directory, parents before children.
            activate: start it at once.
            provenance: where it comes from; only for our master.
        """
        body = {
            "config": config,
            "modelDefinition": files,
            "activate": activate,
            **({"provenance": provenance} if provenance else {}),
        }
        # Not repeatable: if the answer was lost, a second try would create a second experiment.
        answer: dict[str, Any] = self._transport.post(
            _PATH, body, repeatable=False, timeout_s=_SUBMISSION_TIMEOUT_S
        )
        return answer

    def provenance(self, experiment_id: int) -> dict[str, Any] | None:
        """Return where an experiment comes from, None if it was not recorded; only our master has the call."""
        record: dict[str, Any] | None = self._transport.get(f"{_PATH}/{experiment_id}/provenance")[
            "provenance"
        ]
        return record

    def verification(self, experiment_id: int) -> dict[str, Any] | None:
        """Return what the comparison of the first trial with a copy found, None for none; only our master has it."""
        found: dict[str, Any] | None = self._transport.get(f"{_PATH}/{experiment_id}/verification")[
            "verification"
        ]
        return found

    def complete(self, config: str) -> dict[str, Any] | None:
        """Return a config with the defaults of the master, which stores nothing; None if the master does not tell it.

        A Determined 0.38.1 master only says whether the config is valid.

        Args:
            config: YAML text.
        """
        body = {"config": config, "modelDefinition": [], "validateOnly": True}
        complete: dict[str, Any] | None = self._transport.post(_PATH, body)["config"]
        return complete

    def create_unmanaged(self, config: str, external_id: str | None = None) -> dict[str, Any]:
        """Create an experiment whose script runs outside of the master, and return the answer with its notices.

        Args:
            config: YAML text.
            external_id: a name chosen by the script, by which later calls find the experiment; None for a new
                experiment.
        """
        body = {"config": config, "unmanaged": True}
        if external_id is None:
            answer: dict[str, Any] = self._transport.post(_PATH, body, repeatable=False)
        else:
            answer = self._transport.put(f"{_PATH}/by-external-id/{quote(external_id, safe='')}", body)
        return answer

    def continue_(self, experiment_id: int, changes: str) -> dict[str, Any]:
        """Continue an experiment that has ended, and return the answer with its notices.

        Args:
            experiment_id: number of the experiment.
            changes: changes to its config, as YAML text.
        """
        body = {"id": experiment_id, "overrideConfig": changes}
        # Not repeatable: if the answer was lost, a second try would find the experiment running.
        answer: dict[str, Any] = self._transport.post(f"{_PATH}/continue", body, repeatable=False)
        return answer

    def move(self, experiment_id: int, verb: str) -> None:
        """Activate, pause, cancel, kill, archive or unarchive an experiment."""
        self._transport.post(f"{_PATH}/{experiment_id}/{verb}")

    def retain_logs(self, experiment_id: int, days: int) -> None:
        """Say for how many days the logs of an experiment are kept; -1 for ever."""
        body = {"experimentId": experiment_id, "numDays": days}
        self._transport.put(f"{_PATH}/{experiment_id}/retain_logs", body)

    def change(self, experiment_id: int, **changes: object) -> None:
        """Change `name`, `description`, `labels` or `notes` of an experiment."""
        self._transport.patch(f"{_PATH}/{experiment_id}", {"id": experiment_id, **changes})

    def add_label(self, experiment_id: int, label: str) -> None:
        """Add a label to an experiment."""
        self._transport.put(f"{_PATH}/{experiment_id}/labels/{quote(label, safe='')}")

    def remove_label(self, experiment_id: int, label: str) -> None:
        """Remove a label of an experiment."""
        self._transport.delete(f"{_PATH}/{experiment_id}/labels/{quote(label, safe='')}")

    def delete(self, experiment_id: int) -> None:
        """Delete an experiment with everything that belongs to it."""
        self._transport.delete(f"{_PATH}/{experiment_id}")

    def trials(self, experiment_id: int, **params: object) -> list[dict[str, Any]]:
        """Return all trials of an experiment; `params` are query parameters of the protocol."""
        params = {"limit": -1, **params}
        found: list[dict[str, Any]] = self._transport.get(f"{_PATH}/{experiment_id}/trials", params=params)[
            "trials"
        ]
        return found

    def checkpoints(self, experiment_id: int, **params: object) -> list[dict[str, Any]]:
        """Return checkpoints of an experiment; for `params`, see `Trials.all_checkpoints`."""
        found: list[dict[str, Any]] = self._transport.get(
            f"{_PATH}/{experiment_id}/checkpoints", params=params
        )["checkpoints"]
        return found

    def best_validation(self, experiment_id: int, **options: Any) -> float:
        """Return the best value of the searcher's metric; the master answers 404 before the first validation."""
        path = f"{_PATH}/{experiment_id}/searcher/best_searcher_validation_metric"
        return float(self._transport.get(path, **options)["metric"])

    def add_trial(self, experiment_id: int, hparams: Mapping[str, object]) -> dict[str, Any]:
        """Add a trial to a search, and return its number and hyperparameters; only our master has the call.

        Args:
            experiment_id: number of the experiment.
            hparams: by dotted name, all that vary.
        """
        answer: dict[str, Any] = self._transport.post(
            f"{_PATH}/{experiment_id}/trials", {"hparams": hparams}, repeatable=False
        )
        return answer

    def narrow(self, experiment_id: int, wanted: Mapping[str, object]) -> None:
        """Draw the further trials of a search from fewer values; only our master has the call.

        Args:
            experiment_id: number of the experiment.
            wanted: by dotted name, the lowest and the highest value of a range, or the values of a list.
        """
        self._transport.post(f"{_PATH}/{experiment_id}/searcher/narrow", {"hyperparameters": wanted})

    def share(self, experiment_id: int, days: int | None = None) -> dict[str, Any]:
        """Make a link to an experiment's report that needs no login; only our master has the call.

        Args:
            experiment_id: number of the experiment.
            days: after how many days it ends; None for never.

        Returns:
            The link with its `url`, which no other call returns.
        """
        # Not repeatable: if the answer was lost, a second try would make a second link.
        answer: dict[str, Any] = self._transport.post(
            f"{_PATH}/{experiment_id}/links", {} if days is None else {"days": days}, repeatable=False
        )
        return answer

    def shared_links(self, experiment_id: int) -> list[dict[str, Any]]:
        """Return the links to an experiment's report, without their tokens; only our master has the call."""
        found: list[dict[str, Any]] = self._transport.get(f"{_PATH}/{experiment_id}/links")["links"]
        return found

    def unshare(self, experiment_id: int, link_id: int | None = None) -> int:
        """Revoke a link, or with None all links, to an experiment's report; return how many.

        Only our master has the call.
        """
        which = "" if link_id is None else f"/{link_id}"
        return int(self._transport.delete(f"{_PATH}/{experiment_id}/links{which}")["revoked"])

    def preview_search(self, config: Mapping[str, object]) -> dict[str, Any]:
        """Return the trials that a search would create."""
        summary: dict[str, Any] = self._transport.post("/api/v1/preview-hp-search", {"config": config})[
            "summary"
        ]
        return summary
