"""Slots and machines that are out of use."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "disabled_slots",
        sa.Column("node", sa.Text().with_variant(sa.String(255), "sqlite"), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("is_draining", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("node", "slot", name="pk_disabled_slots"),
    )


def downgrade() -> None:
    """Undo."""
    op.drop_table("disabled_slots")
