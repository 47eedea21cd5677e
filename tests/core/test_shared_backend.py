"""Workers share the chief's backend: what they report is not reported twice, and what the chief knows they hear."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from det_keras.core.backend.base import Backend
from det_keras.core.backend.shared import SharedBackend

REPORTS = [
    ("report_metrics", "validation", 3, {"loss": 1.0}),
    ("report_system_metrics", "gpu", {"memory": 1.0}),
    ("report_progress", 0.5),
    ("set_status", "training"),
    ("report_checkpoint_deleted", "7f3e"),
    ("rewind", 3),
    ("acknowledge_preemption",),
    ("flush",),
    ("close",),
]


@pytest.mark.parametrize("report", REPORTS, ids=[report[0] for report in REPORTS])
def test_only_the_chief_passes_reports_on(report):
    name, *arguments = report
    backend = Mock(spec=Backend)
    getattr(SharedBackend(backend, Mock()), name)(*arguments)
    getattr(backend, name).assert_called_once_with(*arguments)
    # A worker has no backend to call.
    assert getattr(SharedBackend(None, Mock(rank=1)), name)(*arguments) is None
