"""Experiments that report from outside, trials that are continued, services that say where they are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "experiments", sa.Column("is_unmanaged", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    op.add_column("experiments", sa.Column("external_id", sa.String(length=255), nullable=True))
    op.create_index("ix_experiments_external_id", "experiments", ["external_id"], unique=True)
    op.add_column("trials", sa.Column("earlier_task_ids", sa.Text(), server_default="[]", nullable=False))
    op.add_column("trials", sa.Column("external_id", sa.String(length=255), nullable=True))
    op.add_column("trials", sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index("ix_trials_external_id", "trials", ["experiment_id", "external_id"], unique=True)
    op.add_column(
        "allocations", sa.Column("is_ready", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    op.add_column("allocations", sa.Column("proxy_address", sa.Text(), nullable=True))


def downgrade() -> None:
    """Undo."""
    op.drop_column("allocations", "proxy_address")
    op.drop_column("allocations", "is_ready")
    op.drop_index("ix_trials_external_id", "trials")
    op.drop_column("trials", "heartbeat_at")
    op.drop_column("trials", "external_id")
    op.drop_column("trials", "earlier_task_ids")
    op.drop_index("ix_experiments_external_id", "experiments")
    op.drop_column("experiments", "external_id")
    op.drop_column("experiments", "is_unmanaged")
