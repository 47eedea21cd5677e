"""The content of an item of media, and the conversions that need no arrays: figures, texts and files.

A value's library is recognised by the modules of its class. Nothing is imported that the script did not import.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from det_keras.protocol.values import finite


@dataclass(frozen=True)
class Content:
    """The content of an item.

    Attributes:
        kind: such as ``image``; a key of `det_keras.protocol.media.EXTENSIONS`.
        extension: extension of its file.
        encode: returns the content of the file; called in the background.
        memory_bytes: about the memory that it uses until then.
        caption: text that is shown with it.
    """

    kind: str
    extension: str
    encode: Callable[[], bytes]
    memory_bytes: int
    caption: str = ""


def stored(kind: str, extension: str, content: bytes, caption: str = "") -> Content:
    """Return a content whose bytes are known."""
    return Content(kind, extension, lambda: content, len(content), caption)


def is_of(value: object, *libraries: str) -> bool:
    """Return whether the class of `value`, or a base of it, comes from one of `libraries`."""
    return any(base.__module__.partition(".")[0] in libraries for base in type(value).__mro__)


def json_content(kind: str, value: Any) -> Content:
    """Return a content of strict JSON; what JSON does not know becomes text."""
    text = json.dumps(finite(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=str)
    return stored(kind, "json", text.encode("utf-8", "replace"))


def text_content(text: object) -> Content:
    """Return a text.

    Raises:
        ValueError: it is not a string.
    """
    if not isinstance(text, str):
        raise ValueError(f"`text` must be a string. Received a {type(text).__name__}.")
    return stored("text", "txt", text.encode("utf-8", "replace"))


def file_content(path: object) -> Content:
    """Return a file with its name as the caption; it is read when it is logged.

    Raises:
        ValueError: there is no such file, or it cannot be read.
    """
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"`path` must be the path of a file. Received a {type(path).__name__}.")
    return stored("file", "bin", read_file(path), Path(path).name.encode("utf-8", "replace").decode())


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a user's file.

    Raises:
        ValueError: there is no such file, or it cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{os.fspath(path)!r} cannot be logged: {error.strerror or error}.") from error


def figure_content(figure: Any) -> Content:
    """Return a figure of matplotlib as PNG, or one of plotly as its JSON.

    Raises:
        ValueError: it is neither.
    """
    if is_of(figure, "plotly") and hasattr(figure, "to_json"):
        return stored("figure", "json", figure.to_json().encode("utf-8", "replace"))
    if is_of(figure, "matplotlib", "seaborn"):
        # Axes and artists know their figure.
        target: Any = figure if hasattr(figure, "savefig") else getattr(figure, "figure", None)
        if hasattr(target, "savefig"):
            buffer = io.BytesIO()
            target.savefig(buffer, format="png")
            return stored("figure", "png", buffer.getvalue())
    raise ValueError(
        "`figure` must be a figure of matplotlib or plotly, such as `plt.gcf()`. "
        f"Received a {type(figure).__module__}.{type(figure).__qualname__}."
    )
