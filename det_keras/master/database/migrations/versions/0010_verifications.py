"""Comparisons of trials with copies that resume."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "verifications",
        sa.Column("experiment_id", big, nullable=False),
        sa.Column("trial_id", big, nullable=False),
        sa.Column("state", _text(32), nullable=False),
        sa.Column("context", _text(64), nullable=True),
        sa.Column("checkpoints", sa.Text(), nullable=False),
        sa.Column("expected", _text(36), nullable=False),
        sa.Column("first_batch", sa.BigInteger(), nullable=False),
        sa.Column("second_batch", sa.BigInteger(), nullable=False),
        sa.Column("attempts", big, nullable=False),
        sa.Column("shares", sa.Text(), nullable=False),
        sa.Column("differences", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name="fk_verifications_experiment_id_experiments"
        ),
        sa.PrimaryKeyConstraint("experiment_id", name="pk_verifications"),
    )
    op.create_index("ix_verifications_state", "verifications", ["state"])
    op.create_index("ix_verifications_context", "verifications", ["context"])


def downgrade() -> None:
    """Undo."""
    op.drop_table("verifications")


def _text(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(sa.Text(), "postgresql")
