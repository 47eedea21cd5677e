"""Reads the wire format of protocol buffers: the numbers and values of a message's fields, without its schema.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

_LONGEST_VARINT = 10


class MalformedError(ValueError):
    """The bytes are no message."""


def fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield number, wire type and value of each field: an integer for `VARINT`, bytes for the others.

    Raises:
        MalformedError: the bytes are no message.
    """
    position, end = 0, len(data)
    while position < end:
        key = data[position]
        position += 1
        if key > 127:
            key, position = varint(data, position - 1)
        kind = key & 7
        if kind == BYTES:
            if position >= end:
                raise MalformedError("The message ends within a field.")
            size = data[position]
            position += 1
            if size > 127:
                size, position = varint(data, position - 1)
        elif kind == VARINT:
            number, position = varint(data, position)
            yield key >> 3, kind, number
            continue
        elif kind == FIXED64:
            size = 8
        elif kind == FIXED32:
            size = 4
        else:
            raise MalformedError(f"There is no wire type {kind}.")
        behind = position + size
        if behind > end:
            raise MalformedError("The message ends within a field.")
        yield key >> 3, kind, data[position:behind]
        position = behind


def varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position, and the position behind it."""
    number = shift = 0
    try:
        for offset in range(position, position + _LONGEST_VARINT):
            byte = data[offset]
            number |= (byte & 127) << shift
            if byte < 128:
                return number, offset + 1
            shift += 7
    except IndexError:
        raise MalformedError("The message ends within a number.") from None
    raise MalformedError("A number is too long.")


def signed(number: int) -> int:
    """Return a number of 64 bits with its sign (``int32``, ``int64``)."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def zigzag(number: int) -> int:
    """Return a number of the types ``sint32`` and ``sint64``."""
    return (number >> 1) ^ -(number & 1)


def double(value: int | bytes) -> float:
    """Return the value of a field of type ``double``."""
    return float(_unpacked("<d", value))


def single(value: int | bytes) -> float:
    """Return the value of a field of type ``float``."""
    return float(_unpacked("<f", value))


def text(value: int | bytes) -> str:
    """Return the value of a field of type ``string``."""
    return content(value).decode("utf-8", "replace")


def content(value: int | bytes) -> bytes:
    """Return the bytes of a field."""
    if isinstance(value, int):
        raise MalformedError("A field has a number in place of bytes.")
    return value


def number(value: int | bytes) -> int:
    """Return the number of a field of type ``int64``."""
    if not isinstance(value, int):
        raise MalformedError("A field has bytes in place of a number.")
    return signed(value)


def _unpacked(form: str, value: int | bytes) -> float:
    try:
        found: float = struct.unpack(form, content(value))[0]
    except struct.error:
        raise MalformedError("A number has the wrong size.") from None
    return found
