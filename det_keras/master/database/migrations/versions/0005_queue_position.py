"""Places in the queue, and indexes to find live allocations and the tasks of a job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("experiments", sa.Column("queue_position", sa.BigInteger(), nullable=True))
    op.add_column("tasks", sa.Column("queue_position", sa.BigInteger(), nullable=True))
    op.create_index("ix_tasks_job_id", "tasks", ["job_id"])
    op.create_index("ix_allocations_end_time", "allocations", ["end_time"])


def downgrade() -> None:
    """Undo; jobs that were moved go back to their places."""
    op.drop_index("ix_tasks_job_id", "tasks")
    op.drop_index("ix_allocations_end_time", "allocations")
    op.drop_column("tasks", "queue_position")
    op.drop_column("experiments", "queue_position")
