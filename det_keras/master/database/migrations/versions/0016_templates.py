"""Templates of configs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "templates",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner_id", big, nullable=False),
        sa.Column("workspace_id", big, nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name="fk_templates_owner_id_users"),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name="fk_templates_workspace_id_workspaces"
        ),
        sa.PrimaryKeyConstraint("name", name="pk_templates"),
    )


def downgrade() -> None:
    """Undo."""
    op.drop_table("templates")
