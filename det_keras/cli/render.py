"""Prints tables and facts; `det_keras.display` formats their values.

On a terminal, tables fit its width. In a pipe they are as wide as their content, so that ids are complete.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

# Wide enough that nothing is wrapped in files and pipes.
_PIPE_COLUMNS = 10_000
_SHORTEST_ID = 20
_GAP = 2
# Colours and the like, which leave the cursor where it is; characters that a terminal obeys, or that reorder a line.
_COLOUR = r"\x1b\[[0-9;:]*m"
_OBEYED = re.compile(rf"({_COLOUR})|(\r+(?=\n))|([\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069])")


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print(json.dumps(value, indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> None:
    """Print rows as a table, aligned below the names of the columns.

    Ids, times and numbers stay complete even on a narrow terminal; only long texts are wrapped.

    Args:
        columns: names; the values below a name that ends with ``>`` are aligned right.
        rows: one text per column.
        title: printed above the table; None for no title.
    """
    # Imported here: importing rich takes longer than most commands.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    is_terminal = sys.stdout.isatty()
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    needed = 0
    for index, column in enumerate(columns):
        name, is_right = column.removesuffix(">"), column.endswith(">")
        longest = max([len(name), *(len(row[index]) for row in rows)])
        is_whole = not is_terminal or longest <= _SHORTEST_ID or column.startswith("UUID")
        least = longest if is_whole else _SHORTEST_ID
        table.add_column(name, justify="right" if is_right else "left", no_wrap=is_whole, min_width=least)
        needed += least + _GAP
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console = Console(highlight=False)
    console.width = max(console.width, needed) if is_terminal else _PIPE_COLUMNS
    with console.capture() as captured:
        if title is not None:
            console.print(Text(printable(title), style="bold"))
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_facts(facts: Mapping[str, str]) -> None:
    """Print named values, one per line."""
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name + ':':<{width + 1}} {printable(value)}")


def printable(text: str) -> str:
    """Return text without control characters, which could move the cursor or change colours."""
    return "".join(character if character.isprintable() else " " for character in text)


def write(text: str, stream: TextIO, *, is_raw: bool = False) -> None:
    """Write a text that others wrote, such as a line of a log.

    A terminal shows its control characters, such as ``\\x1b``, and obeys none: they could change the title, clear the
    screen or answer for the user. Line breaks, tabs and colours stay. Files and pipes receive the text as it is.

    Args:
        text: the text.
        stream: where to write it.
        is_raw: also write it to a terminal as it is.
    """
    stream.write(text if is_raw or not stream.isatty() else _OBEYED.sub(_shown, text))


def _shown(found: re.Match[str]) -> str:
    colour, line_end, obeyed = found.groups()
    return colour or ("" if line_end else ascii(obeyed)[1:-1])
