"""The package's version and the format of its log lines."""

from __future__ import annotations

__version__ = "0.1.0"

#: The format of the package's own log lines, for `logging.basicConfig`.
LOG_FORMAT = "%(levelname)s: [%(process)s] %(name)s: %(message)s"
