"""The level of a log line that does not begin with one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("task_logs", sa.Column("derived_level", sa.Text(), nullable=True))


def downgrade() -> None:
    """Undo."""
    op.drop_column("task_logs", "derived_level")
