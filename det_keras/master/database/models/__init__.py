"""The tables of the master's database.

All state that must survive a restart is stored here. Derived facts, such as whether a trial waits for slots,
are not. Times are UTC. A migration accompanies every change (`migrations/`).
"""

from __future__ import annotations

from det_keras.master.database.models.accounts import (
    AccessTokenRow,
    AuditRow,
    SavedViewRow,
    SettingRow,
    SharedLinkRow,
    TokenRow,
    UserRow,
    UserSettingRow,
)
from det_keras.master.database.models.base import Base, Json, PlainText, UtcTime, utc_text
from det_keras.master.database.models.experiments import (
    ExperimentRow,
    SearchEventRow,
    SearchRow,
    TrialRow,
    VerificationRow,
)
from det_keras.master.database.models.registry import ModelRow, ModelVersionRow, TrialSourceRow
from det_keras.master.database.models.reports import (
    CheckpointRow,
    MediaRow,
    MetricRow,
    ProvenanceRow,
    StorageRow,
)
from det_keras.master.database.models.tasks import AllocationRow, DisabledSlotRow, LogRow, TaskRow
from det_keras.master.database.models.teams import (
    DeliveryRow,
    PinRow,
    ProjectRow,
    TemplateRow,
    WebhookRow,
    WorkspaceRow,
)

__all__ = [
    "AccessTokenRow",
    "AllocationRow",
    "AuditRow",
    "Base",
    "CheckpointRow",
    "DeliveryRow",
    "DisabledSlotRow",
    "ExperimentRow",
    "Json",
    "LogRow",
    "MediaRow",
    "MetricRow",
    "ModelRow",
    "ModelVersionRow",
    "PinRow",
    "PlainText",
    "ProjectRow",
    "ProvenanceRow",
    "SavedViewRow",
    "SearchEventRow",
    "SearchRow",
    "SettingRow",
    "SharedLinkRow",
    "StorageRow",
    "TaskRow",
    "TemplateRow",
    "TokenRow",
    "TrialRow",
    "TrialSourceRow",
    "UserRow",
    "UserSettingRow",
    "UtcTime",
    "VerificationRow",
    "WebhookRow",
    "WorkspaceRow",
    "utc_text",
]
