"""Sections of a config as frozen dataclasses, in which each field is declared once.

Each field declares its kind, its default and its properties. Parsing, converting back, unknown keys and the notices
about fields without effect follow from the declarations.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast

from det_keras.config.kinds import Choice, Kind, Place, shown
from det_keras.config.problems import Problems, did_you_mean
from det_keras.errors import ConfigError, ConfigProblem

logger = logging.getLogger(__name__)

T = TypeVar("T")
S = TypeVar("S", bound="Section")


@dataclass(frozen=True)
class _Declaration:
    kind: Kind[Any]
    required: bool
    inert: bool
    only: tuple[str, ...] | None
    omit_null: bool


def setting(
    kind: Kind[T],
    default: T | None = None,
    *,
    factory: Callable[[], T] | None = None,
    required: bool = False,
    inert: bool = False,
    only: tuple[str, ...] | None = None,
) -> T:
    """Declare a field that always has a value.

    Args:
        kind: the kind of its values.
        default: its value if it is not given.
        factory: creates the default, if it is mutable or different in each run.
        required: whether omitting it is an error; lenient parsing uses the default.
        inert: whether it is accepted but has no effect, with a notice if it is set.
        only: the tags of a `TaggedSection` to which it belongs; None for all.
    """
    metadata = {"declaration": _Declaration(kind, required, inert, only, False)}
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return cast("T", dataclasses.field(default=default, metadata=metadata))


def optional(
    kind: Kind[T],
    *,
    required: bool = False,
    inert: bool = False,
    only: tuple[str, ...] | None = None,
    omit_null: bool = False,
) -> T | None:
    """Declare a field that is None if it is not given.

    Args:
        kind: the kind of its values.
        required: whether omitting it is an error.
        inert: as for `setting`.
        only: as for `setting`.
        omit_null: whether `to_dict` omits it if it is None.
    """
    declaration = _Declaration(kind, required, inert, only, omit_null)
    return cast("T | None", dataclasses.field(default=None, metadata={"declaration": declaration}))


@dataclass(frozen=True)
class Section:
    """A mapping with known keys; subclasses are frozen dataclasses of `setting` and `optional` fields."""

    @classmethod
    def parse(cls: type[S], raw: Any, place: Place) -> S:
        """Parse a mapping; null values count as not given.

        Raises:
            ConfigError: `raw` is invalid; the error has all problems.
        """
        if not isinstance(raw, Mapping):
            raise place.error(f"must be a mapping, received {shown(raw)}.")
        values, problems = cls.read(raw, place)
        if problems and place.strict:
            raise ConfigError(problems)
        for problem in problems:
            logger.warning("%s The default is used.", problem)
        return cls(**values)

    @classmethod
    def read(cls, raw: Mapping[str, Any], place: Place) -> tuple[dict[str, Any], list[ConfigProblem]]:
        """Return the fields that could be parsed, including defaults, and all problems."""
        declared = cls._declared(raw)
        problems = Problems(_unknown_keys(cls, raw, declared, place))
        values = {}
        for name, declaration in declared.items():
            with problems.collected():
                values[name] = cls._read(name, declaration, raw.get(name), place)
        problems.extend(cls.check(values, place))
        return values, problems

    @classmethod
    def check(cls, values: Mapping[str, Any], place: Place) -> Iterator[ConfigProblem]:
        """Yield problems between fields.

        Args:
            values: the fields that could be parsed, including defaults. Invalid fields are absent, so use `get`.
            place: position of the section.
        """
        return iter(())

    @classmethod
    def unknown_key(cls, name: Any, raw: Mapping[str, Any], known: Mapping[str, Any]) -> str:
        """Return the message about an unknown key.

        Args:
            name: the unknown key.
            raw: the section.
            known: the known keys.
        """
        hint = did_you_mean(name, known)
        if not hint and len(known) <= 16:
            hint = f" Known are {', '.join(f'`{key}`' for key in known)}."
        return f"unknown key.{hint}"

    def to_dict(self) -> dict[str, Any]:
        """Return the section as plain values, including defaults; `parse` reads it."""
        result = {}
        for name, declaration in self._declared(self._fields()).items():
            value = getattr(self, name)
            if value is not None or not declaration.omit_null:
                result[name] = None if value is None else declaration.kind.dump(value)
        return result

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of all fields, in order."""
        return [field.name for field in dataclasses.fields(cls)]

    @classmethod
    def kind_of(cls, name: str) -> Kind[Any]:
        """Return the kind of the field `name`."""
        kind: Kind[Any] = cls.__dataclass_fields__[name].metadata["declaration"].kind
        return kind

    def inert_paths(self, place: Place) -> Iterator[str]:
        """Yield the path of every field that is set and has no effect."""
        for field in dataclasses.fields(self):
            declaration = field.metadata["declaration"]
            value, below = getattr(self, field.name), place.below(field.name)
            if declaration.inert:
                if value != _default(field):
                    yield below.path
            elif isinstance(value, Section):
                yield from value.inert_paths(below)

    def _fields(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def _declared(cls, raw: Mapping[str, Any]) -> dict[str, _Declaration]:
        return {field.name: field.metadata["declaration"] for field in dataclasses.fields(cls)}

    @classmethod
    def _read(cls, name: str, declaration: _Declaration, raw: Any, place: Place) -> Any:
        if raw is not None:
            return declaration.kind.parse(raw, place.below(name))
        if declaration.required and place.strict:
            kind = declaration.kind
            names = (
                f" Give one of {', '.join(f'`{choice}`' for choice in kind.names)}."
                if isinstance(kind, Choice)
                else ""
            )
            raise place.below(name).error(f"is required.{names}")
        return _default(next(field for field in dataclasses.fields(cls) if field.name == name))


@dataclass(frozen=True)
class TaggedSection(Section):
    """A section in which one field, the tag, decides which other fields exist.

    A field that belongs to other tags has its default and is not part of `to_dict`.
    """

    tag: ClassVar[str]

    @classmethod
    def common_names(cls) -> frozenset[str]:
        """Return the names of the fields that exist for every tag, without the tag itself."""
        common = {name for name, declaration in super()._declared({}).items() if declaration.only is None}
        return frozenset(common - {cls.tag})

    @classmethod
    def unknown_key(cls, name: Any, raw: Mapping[str, Any], known: Mapping[str, Any]) -> str:
        """Return the message about an unknown key; empty if the key is valid for another tag and the tag is wrong.

        Args:
            name: the unknown key.
            raw: the section.
            known: the known keys.
        """
        everything = super()._declared(raw)
        if name not in everything:
            return super().unknown_key(name, raw, known if did_you_mean(name, known) else everything)
        tag, declaration = raw.get(cls.tag), everything[cls.tag]
        tag_is_wrong = declaration.required if tag is None else not _is_named(tag, declaration)
        if raw[name] is None or tag_is_wrong:
            return ""
        owners = ", ".join(f"`{owner}`" for owner in everything[name].only or ())
        if tag is None:
            return f"requires `{cls.tag}`, one of {owners}."
        return f"is not valid for `{cls.tag}: {tag}`, only for {owners}."

    @classmethod
    def _declared(cls, raw: Mapping[str, Any]) -> dict[str, _Declaration]:
        tag = raw.get(cls.tag)
        everything = super()._declared(raw)
        return {name: field for name, field in everything.items() if field.only is None or tag in field.only}


@dataclass(frozen=True)
class SectionKind(Kind[S]):
    """A field that is a section."""

    section: type[S]

    def parse(self, raw: Any, place: Place) -> S:
        return self.section.parse(raw, place)

    def dump(self, value: S) -> dict[str, Any]:
        return value.to_dict()


def _unknown_keys(
    section: type[Section], raw: Mapping[str, Any], declared: Mapping[str, Any], place: Place
) -> list[ConfigProblem]:
    if not place.strict:
        return []
    messages = [(name, section.unknown_key(name, raw, declared)) for name in raw if name not in declared]
    return [place.below(name).problem(message) for name, message in messages if message]


def _is_named(tag: Any, declaration: _Declaration) -> bool:
    return isinstance(tag, str) and isinstance(declaration.kind, Choice) and tag in declaration.kind.names


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
