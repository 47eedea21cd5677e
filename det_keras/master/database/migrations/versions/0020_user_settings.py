"""Settings that clients keep for their users."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "user_settings",
        sa.Column("user_id", big, nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_user_settings_user_id_users"),
        sa.PrimaryKeyConstraint("user_id", "path", "key", name="pk_user_settings"),
    )


def downgrade() -> None:
    """Undo."""
    op.drop_table("user_settings")
