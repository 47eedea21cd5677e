"""Links to reports that need no login."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    digest = sa.Text().with_variant(sa.String(64), "sqlite")
    op.create_table(
        "shared_links",
        sa.Column("id", big, nullable=False),
        sa.Column("experiment_id", big, nullable=False),
        sa.Column("maker_id", big, nullable=False),
        sa.Column("hash", digest, nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name="fk_shared_links_experiment_id_experiments"
        ),
        sa.ForeignKeyConstraint(["maker_id"], ["users.id"], name="fk_shared_links_maker_id_users"),
        sa.PrimaryKeyConstraint("id", name="pk_shared_links"),
        sa.UniqueConstraint("hash", name="uq_shared_links_hash"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_shared_links_experiment_id", "shared_links", ["experiment_id"])


def downgrade() -> None:
    """Undo."""
    op.drop_table("shared_links")
