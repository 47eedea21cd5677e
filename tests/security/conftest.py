"""The masters of tests/master."""

from __future__ import annotations

from master.conftest import empty_home, first_start, home, make_world, real, use_home, used_home, world

__all__ = ["empty_home", "first_start", "home", "make_world", "real", "use_home", "used_home", "world"]
