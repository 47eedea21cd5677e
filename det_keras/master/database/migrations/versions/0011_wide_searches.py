"""Indexes by which the trials of a wide search are found."""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_index("ix_trials_experiment_id_state", "trials", ["experiment_id", "state"])
    op.create_index("ix_trials_experiment_id_request_id", "trials", ["experiment_id", "request_id"])


def downgrade() -> None:
    """Undo."""
    op.drop_index("ix_trials_experiment_id_request_id", "trials")
    op.drop_index("ix_trials_experiment_id_state", "trials")
