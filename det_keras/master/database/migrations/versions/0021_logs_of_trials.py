"""How long the log of a trial is kept, and the machines that its log policies exclude."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("trials", sa.Column("excluded_nodes", sa.Text(), nullable=False, server_default="[]"))
    op.add_column("trials", sa.Column("log_retention_days", sa.Integer()))


def downgrade() -> None:
    """Undo."""
    with op.batch_alter_table("trials") as table:
        table.drop_column("log_retention_days")
        table.drop_column("excluded_nodes")
