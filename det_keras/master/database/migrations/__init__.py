"""The history of the database's schema, one script per change in `versions/`; run at every start."""

from __future__ import annotations

__all__ = ["HEAD"]

#: The newest revision, named here so that a start with nothing to migrate need not import Alembic.
HEAD = "0002"
