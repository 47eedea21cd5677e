"""Images: arrays, images of PIL, and files of formats that browsers draw without executing anything."""

from __future__ import annotations

import io
import math
import os
import struct
import zlib
from typing import Any

import numpy as np

from det_keras.core.media.content import Content, is_of, read_file, stored

#: A batch becomes a grid of at most this many images.
MOST_IN_GRID = 64

_GAP = 2
# Channels -> colour type of PNG.
_COLOR_TYPES = {1: 0, 3: 2, 4: 6}
_PIL_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA"})
# Rounding errors of float32 and of resizing.
_TOLERANCE = 1e-3


def image_content(value: Any, caption: str = "") -> Content:
    """Return an image.

    Args:
        value: an array of uint8, or of floats from 0 to 1, of shape (height, width), (height, width, 1 | 3 | 4), or
            (images, height, width, channels); an image of PIL; or the path of a PNG, JPEG, GIF or WebP.
        caption: text that is shown with it.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(value, str | os.PathLike):
        content = read_file(value)
        extension = _format_of(content)
        if extension is None:
            raise ValueError(f"{os.fspath(value)!r} is not a PNG, JPEG, GIF or WebP. Use `log_file` for it.")
        return stored("image", extension, content, caption)
    if is_of(value, "PIL"):
        return stored("image", "png", _pil_png(value), caption)
    pixels = _pixels(value)
    return Content("image", "png", lambda: png(pixels), pixels.nbytes, caption)


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    """Return a PNG.

    Args:
        pixels: uint8, (height, width, 1 | 3 | 4).

    Source: PNG Specification, third edition (W3C).
    """
    height, width, channels = pixels.shape
    # Each row begins with the number of its filter: 0 is none.
    rows = np.zeros((height, 1 + width * channels), np.uint8)
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[channels], 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _format_of(content: bytes) -> str | None:
    """Return the extension of an image's format, by its first bytes."""
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if content.startswith(b"\xff\xd8\xff"):
        return "jpg"
    if content.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return "webp"
    return None


def _pil_png(image: Any) -> bytes:
    buffer = io.BytesIO()
    (image if image.mode in _PIL_MODES else image.convert("RGB")).save(buffer, format="PNG")
    return buffer.getvalue()


def _pixels(value: Any) -> np.ndarray[Any, Any]:
    """Return a copy of an image as uint8, (height, width, channels); of a batch, its grid."""
    array = np.asarray(value)
    shape = array.shape
    if array.ndim == 2:
        array = array[..., np.newaxis]
    if array.ndim not in (3, 4) or array.shape[-1] not in _COLOR_TYPES or 0 in array.shape:
        raise ValueError(
            "An image has the shape (height, width) or (height, width, channels), a batch (images, height, width, "
            f"channels), with 1, 3 or 4 channels and no empty axis. Received the shape {shape}."
        )
    return _grid(_as_uint8(array[:MOST_IN_GRID])) if array.ndim == 4 else _as_uint8(array)


def _as_uint8(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype == np.uint8:
        return array.copy()
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * 255
    # NumPy does not know bfloat16 as a float.
    if not np.issubdtype(array.dtype, np.floating) and array.dtype.name != "bfloat16":
        raise ValueError(
            f"An image has the dtype uint8 (0 to 255) or float (0 to 1). Received {array.dtype.name}."
        )
    values = array.astype(np.float32)
    lowest, highest = float(np.nanmin(values, initial=0.0)), float(np.nanmax(values, initial=0.0))
    if lowest < -_TOLERANCE or highest > 1 + _TOLERANCE:
        raise ValueError(
            f"An image of floats has values from 0 to 1. Received {lowest:g} to {highest:g}: scale them, or pass uint8."
        )
    # A diverged model may draw NaN; this must not end its training.
    pixels: np.ndarray[Any, Any] = np.rint(np.clip(np.nan_to_num(values), 0, 1) * 255).astype(np.uint8)
    return pixels


def _grid(images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return images side by side, in rows, as nearly square as possible."""
    count, height, width, channels = images.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    grid = np.zeros((rows * (height + _GAP) - _GAP, columns * (width + _GAP) - _GAP, channels), images.dtype)
    for index, image in enumerate(images):
        row, column = divmod(index, columns)
        top, left = row * (height + _GAP), column * (width + _GAP)
        grid[top : top + height, left : left + width] = image
    return grid
