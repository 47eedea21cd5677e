"""The encoding of requests and responses: camelCase messages, strict JSON, times in UTC."""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import from_json

from det_keras.master.errors import InvalidArgumentError
from det_keras.protocol.values import finite, parse_timestamp

MessageT = TypeVar("MessageT", bound="Message")

# Created once: creating it takes as long as encoding a small response.
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_MOST_LEVELS = 64
_MOST_VALUES = 500_000
_TOO_MANY = f"The body may have {_MOST_VALUES:,} values: items of lists and objects."
_TOO_DEEP = f"The body is nested too deeply: more than {_MOST_LEVELS} lists and objects in each other."
# Each value but the first of a list or object is behind a comma. In strings they mean nothing.
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
# Of a body that does not match its class.
_MOST_PROBLEMS = 20
_LONGEST_SHOWN = 100
# Matches what may be a number that is not finite: its name, or a number that is too large for a float.
_NOT_FINITE = re.compile(rb"NaN|Infinity|[eE]\+?\d{3}|\d{300}")
# Stored as JSON text: their numbers may be of any size.
_FREE_FORM = frozenset(
    {"avg_metrics", "batch_metrics", "checkpoint_storage", "config", "metadata", "metrics", "provenance"}
)


#: Most items of a list of a body, unless its field has a limit of its own: each costs a statement or an object.
MOST_ITEMS = 10_000
#: Most characters of a text of a body, unless its field has a limit of its own: lists and pages show it whole.
LONGEST_TEXT = 1 << 20


class Message(BaseModel):
    """A request body: camelCase or snake_case, null means absent, unknown keys are refused.

    A field without a limit of its own has at most `MOST_ITEMS` items or `LONGEST_TEXT` characters.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")

    #: Fields that clients of Determined send, and that say nothing new to this master.
    without_effect: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, Mapping):
            return value
        given = {name: item for name, item in value.items() if item is not None}
        # Not by pydantic's `forbid`: its message has no nearest name.
        if cls.model_config.get("extra") != "allow":
            known = _known_names(cls)
            unknown = [name for name in given if name not in known and name not in (info.context or ())]
            if unknown:
                raise ValueError(
                    unknown_text("field", unknown, [to_camel(name) for name in cls.model_fields])
                )
        return given

    @model_validator(mode="before")
    @classmethod
    def _refuse_long(cls, value: Any) -> Any:
        # Before the items are validated, which takes long for many of them.
        for name, field in cls.model_fields.items() if isinstance(value, Mapping) else ():
            given = value.get(to_camel(name), value.get(name))
            if name in _FREE_FORM or any(hasattr(limit, "max_length") for limit in field.metadata):
                continue
            if isinstance(given, list) and len(given) > MOST_ITEMS:
                raise ValueError(f"`{to_camel(name)}` may have {MOST_ITEMS} items, received {len(given)}")
            if isinstance(given, str) and len(given) > LONGEST_TEXT:
                raise ValueError(
                    f"`{to_camel(name)}` may have {LONGEST_TEXT} characters, received {len(given)}"
                )
        return value

    @model_validator(mode="after")
    def _refuse_large_numbers(self) -> Message:
        for name in type(self).model_fields:
            value = getattr(self, name)
            values = (
                value.values() if isinstance(value, dict) else value if isinstance(value, list) else (value,)
            )
            if name not in _FREE_FORM and any(
                isinstance(item, int) and not fits_64_bits(item) for item in values
            ):
                raise ValueError(f"`{to_camel(name)}` must be a number of 64 bits")
        return self


@functools.cache
def _known_names(kind: type[Message]) -> frozenset[str]:
    """Return all names under which a message takes a field, or ignores it."""
    names = {*kind.model_fields, *kind.without_effect}
    for name, field in kind.model_fields.items():
        names |= {to_camel(name), field.alias or name}
        if isinstance(field.validation_alias, AliasChoices):
            names.update(choice for choice in field.validation_alias.choices if isinstance(choice, str))
        elif isinstance(field.validation_alias, str):
            names.add(field.validation_alias)
    return frozenset(names)


def unknown_text(kind: str, names: Sequence[str], known: Iterable[str]) -> str:
    """Return what is wrong with names that nothing has, with the nearest that something has.

    Args:
        kind: what they are, such as ``field``.
        names: the unknown ones.
        known: those that exist.
    """
    spelled = {one.lower(): one for one in known}
    texts = []
    for name in names[:_MOST_PROBLEMS]:
        near = difflib.get_close_matches(to_camel(name).lower(), spelled, 1, cutoff=0.6)
        hint = f" Did you mean `{spelled[near[0]]}`?" if near else ""
        texts.append(f"There is no {kind} `{name[:_LONGEST_SHOWN]}`.{hint}")
    return " ".join(texts)


def fits_64_bits(number: int) -> bool:
    """Return whether the database can store an integer."""
    return -(1 << 63) <= number < 1 << 63


def parse_message(
    kind: type[MessageT], body: bytes, bare_list: str | None = None, repeated: frozenset[str] = frozenset()
) -> MessageT:
    """Parse a request body; an empty body is an empty message.

    Args:
        kind: the class of the message.
        body: JSON text.
        bare_list: if the body is a list, the field of the message that receives it; None accepts no list.
        repeated: further names that are known: those of the address, which clients of Determined repeat.

    Raises:
        InvalidArgumentError: the body is not a JSON object, or does not match; every wrong field is named.
    """
    content = decode_json(body) if body.strip() else {}
    if bare_list is not None and isinstance(content, list):
        content = {bare_list: content}
    if not isinstance(content, dict):
        raise InvalidArgumentError(f"The body must be a JSON object, received {type(content).__name__}.")
    try:
        return kind.model_validate(content, context=repeated)
    except ValidationError as error:
        raise InvalidArgumentError(validation_text(error.errors())) from None


def validation_text(problems: list[Any]) -> str:
    """Return one line with all problems that pydantic found."""
    texts = []
    for problem in problems[:_MOST_PROBLEMS]:
        # A text of ours names its field itself.
        text = problem["msg"].removeprefix("Value error, ")
        path = ".".join(str(part) for part in problem["loc"])
        texts.append(f"`{path}`: {text}" if path else text)
    if len(problems) > _MOST_PROBLEMS:
        texts.append(f"and {len(problems) - _MOST_PROBLEMS} more problems")
    joined = "; ".join(texts)
    return joined if joined.endswith((".", "?")) else f"{joined}."


def decode_json(body: bytes) -> Any:
    """Return the value of JSON text; the Content-Type is ignored.

    Raises:
        InvalidArgumentError: it is not JSON in UTF-8, has too many values, or is nested too deeply.
    """
    _refuse_many_values(body)
    try:
        # Not `json`: it accepts a surrogate without its other half, which can be neither stored nor shown.
        value = from_json(body)
    except ValueError as error:
        text = _TOO_DEEP if "recursion limit" in str(error) else f"The body is not JSON: {error}."
        raise InvalidArgumentError(text) from None
    if _is_deeper(value, _MOST_LEVELS):
        raise InvalidArgumentError(_TOO_DEEP)
    return finite(value) if _NOT_FINITE.search(body) else value


def _refuse_many_values(body: bytes) -> None:
    """Refuse a body before it is parsed: parsing and checking a value takes as long as counting a thousand."""
    if _most_values(body) <= _MOST_VALUES:
        return
    # There are commas in strings, as in lines of logs. A body with more strings than this has too many values.
    bare, strings = _STRING.subn(b"", body, count=2 * _MOST_VALUES)
    if strings == 2 * _MOST_VALUES or _most_values(bare) > _MOST_VALUES:
        raise InvalidArgumentError(_TOO_MANY)


def _most_values(body: bytes) -> int:
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def _is_deeper(value: Any, levels: int) -> bool:
    """Return whether lists and objects are nested deeper than `levels`."""
    # `from_json` has a limit too, of about 200 levels. It cannot be set, and it may change with the version.
    inner = [value]
    for _ in range(levels + 1):
        inner = [
            item
            for holder in inner
            if isinstance(holder, dict | list)
            for item in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(item, dict | list)
        ]
        if not inner:
            return False
    return True


def encode_json(value: Any) -> bytes:
    """Return strict JSON: NaN and infinities as text."""
    try:
        return _ENCODER.encode(value).encode()
    except ValueError:
        return _ENCODER.encode(finite(value)).encode()


def int64_map(values: Mapping[str, int]) -> dict[str, str]:
    """Return a map of 64-bit integers as clients expect them: as text."""
    return {name: str(value) for name, value in values.items()}


def from_timestamp(text: str) -> datetime:
    """Parse a time that a client sent; without an offset it is UTC.

    Raises:
        InvalidArgumentError: it is not an RFC 3339 time.
    """
    try:
        return parse_timestamp(text)
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from None


def is_own_address(text: str) -> bool:
    """Return whether a text is the address of a page of this master, without a host."""
    # `//elsewhere` is an address on another host, and browsers treat `\` as `/`.
    return text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
