"""Regular expressions for the lines of a log.

They are matched by RE2, whose time is linear in the length of the line. With Python's `re`, a pattern such as
``(a+)+$`` can take hours for one line, and stops every thread of the master for as long.
"""

from __future__ import annotations

import re2

_SYNTAX = "https://github.com/google/re2/wiki/Syntax"


class LogPatternError(ValueError):
    """The text of a pattern cannot be compiled."""


class LogPattern:
    """A compiled pattern.

    Args:
        text: a regular expression in RE2's syntax.

    Raises:
        LogPatternError: `text` is not in RE2's syntax.
    """

    def __init__(self, text: str) -> None:
        options = re2.Options()
        # Otherwise RE2 also writes its errors to stderr.
        options.log_errors = False
        try:
            self._compiled = re2.compile(text, options)
        except re2.error as error:
            # RE2's message is bytes.
            reason = error.args[0].decode() if error.args else "it is too complex"
            raise LogPatternError(
                f"{text!r} is not a regular expression in RE2's syntax: {reason}. "
                f"RE2 has no backreferences and no lookaround. See {_SYNTAX}"
            ) from None
        except UnicodeEncodeError:
            raise LogPatternError(f"{text!r} is not a regular expression: it is not Unicode text.") from None

    def is_in(self, line: str) -> bool:
        """Return whether a line contains the pattern; ``$`` matches before the line break at the end."""
        found = self._compiled.search(line.removesuffix("\n").encode(errors="replace"))
        return found is not None
