"""Where experiments, trials and jobs come from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "provenance",
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("subject", name="pk_provenance"),
    )


def downgrade() -> None:
    """Undo."""
    op.drop_table("provenance")
