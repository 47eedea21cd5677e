"""Slots and machines out of use; how long logs are kept, and the machines that log policies exclude."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "disabled_slots",
        sa.Column("node", sa.Text().with_variant(sa.String(255), "sqlite"), nullable=False),
        sa.Column("slot", big, nullable=False),
        sa.Column("is_draining", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("node", "slot", name="pk_disabled_slots"),
    )
    op.add_column("trials", sa.Column("excluded_nodes", sa.Text(), nullable=False, server_default="[]"))
    op.add_column("trials", sa.Column("log_retention_days", big))


def downgrade() -> None:
    """Undo."""
    with op.batch_alter_table("trials") as table:
        table.drop_column("log_retention_days")
        table.drop_column("excluded_nodes")
    op.drop_table("disabled_slots")
