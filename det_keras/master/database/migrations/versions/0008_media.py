"""Media of trials, such as images and tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "media",
        sa.Column("id", number, nullable=False),
        sa.Column("trial_id", number, nullable=False),
        sa.Column("storage_id", number, nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("caption", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("report_time", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="fk_media_trial_id_trials"),
        sa.ForeignKeyConstraint(["storage_id"], ["storages.id"], name="fk_media_storage_id_storages"),
        sa.PrimaryKeyConstraint("id", name="pk_media"),
    )
    op.create_index("ix_media_trial_id", "media", ["trial_id", "kind", "name", "step"], unique=True)


def downgrade() -> None:
    """Undo; the files stay in the storages."""
    op.drop_index("ix_media_trial_id", "media")
    op.drop_table("media")
