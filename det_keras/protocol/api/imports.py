"""Calls about imported runs of other trackers, which only our master has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from det_keras.protocol.api.transport import Transport
from det_keras.protocol.imports import MOST_FOUND

_PATH = "/api/v1/imports"
# A part may have 100,000 values, and a busy master stores the reports of its trials first.
_TIMEOUT_S = 120.0


class Imports:
    """Calls about imported runs; every method raises MasterError when the master rejects the call.

    Args:
        transport: sends the calls.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def find(self, external_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the runs among `external_ids` that were imported, completely or in part, by external id."""
        found: dict[str, dict[str, Any]] = {}
        for start in range(0, len(external_ids), MOST_FOUND):
            body = {"externalIds": external_ids[start : start + MOST_FOUND]}
            answer = self._transport.post(f"{_PATH}/find", body)
            found |= {run["externalId"]: run for run in answer["runs"]}
        return found

    def store(self, external_id: str, part: Mapping[str, object]) -> dict[str, Any]:
        """Store a part of a run, and return what it changed; sending it again changes nothing."""
        path = f"{_PATH}/{quote(external_id, safe='')}"
        answer: dict[str, Any] = self._transport.put(path, part, timeout_s=_TIMEOUT_S)
        return answer
