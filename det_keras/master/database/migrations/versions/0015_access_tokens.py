"""Access tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    digest = sa.Text().with_variant(sa.String(64), "sqlite")
    op.create_table(
        "access_tokens",
        sa.Column("id", big, nullable=False),
        sa.Column("user_id", big, nullable=False),
        sa.Column("hash", digest, nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("is_revoked", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_access_tokens_user_id_users"),
        sa.PrimaryKeyConstraint("id", name="pk_access_tokens"),
        sa.UniqueConstraint("hash", name="uq_access_tokens_hash"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_access_tokens_user_id", "access_tokens", ["user_id"])


def downgrade() -> None:
    """Undo."""
    op.drop_table("access_tokens")
