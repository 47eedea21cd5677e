"""The config reference, from the declarations of the config's sections and their docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterator
from typing import Any

import griffe

from det_keras.config import ExperimentConfig, JobConfig
from det_keras.config.kinds import (
    Anything,
    Boolean,
    Choice,
    Integer,
    Kind,
    LengthKind,
    ListOf,
    MapOf,
    Number,
    PlainMapping,
    SpaceKind,
    Text,
)  # fmt: skip
from det_keras.config.section import Section, SectionKind, TaggedSection

__all__ = ["generate", "undescribed_fields"]

#: Fields whose default differs from run to run.
_GENERATED = ("name", "experiment_seed")
_TYPES = {
    Anything: "any value",
    Boolean: "true or false",
    LengthKind: "length: `{batches: N}`, `{records: N}` or `{epochs: N}`",
    PlainMapping: "mapping",
    SpaceKind: "[space](../search.md#the-space)",
    Text: "text",
}


def generate() -> str:
    """Return a table for each section: the experiment's config, the job's, and those inside of them.

    Raises:
        ValueError: a field has no description in its section's docstring.
    """
    if undescribed := undescribed_fields():
        raise ValueError(
            f"Describe {', '.join(undescribed)} under `Attributes` in the docstring of the section."
        )
    parts = []
    for section in _sections():
        summary = inspect.cleandoc(section.__doc__ or "").partition("\n\n")[0]
        head = "| Field | Type | Default | Description |\n| --- | --- | --- | --- |"
        parts.append("\n".join([f"## {_title(section)}\n", f"{summary}\n", head, *_rows(section), ""]))
    return "\n".join(parts)


def undescribed_fields() -> list[str]:
    """Return every field that has an effect and no description in its section's docstring."""
    return [
        f"{section.__name__}.{name}"
        for section in _sections()
        for name in section.names()
        if name not in _descriptions(section) and not _declaration(section, name).inert
    ]


def _sections() -> list[type[Section]]:
    """Return all sections, those of an experiment first, each once."""
    found: dict[type[Section], None] = {}
    waiting: list[type[Section]] = [JobConfig, ExperimentConfig]
    while waiting:
        section = waiting.pop()
        if section not in found:
            found[section] = None
            effective = [name for name in section.names() if not _declaration(section, name).inert]
            inner = [_inner(section.kind_of(name)) for name in effective]
            waiting += [kind.section for kind in reversed(inner) if isinstance(kind, SectionKind)]
    return list(found)


def _declaration(section: type[Section], name: str) -> Any:
    return section.__dataclass_fields__[name].metadata["declaration"]


def _inner(kind: Kind[Any]) -> Kind[Any]:
    return _inner(kind.kind) if isinstance(kind, (ListOf, MapOf)) else kind


def _title(section: type[Section]) -> str:
    return {"ExperimentConfig": "Experiment", "JobConfig": "Job"}.get(section.__name__, section.__name__)


def _rows(section: type[Section]) -> Iterator[str]:
    described = _descriptions(section)
    for field in dataclasses.fields(section):
        declaration = _declaration(section, field.name)
        text = described.get(field.name, "")
        if declaration.only is not None:
            assert issubclass(section, TaggedSection)
            text += f" Only with `{section.tag}`: {', '.join(f'`{tag}`' for tag in declaration.only)}."
        if declaration.inert:
            text += " Read for compatibility; no effect."
        default = "required" if declaration.required else _default(field, declaration)
        yield f"| `{field.name}` | {_type(declaration.kind)} | {default} | {text.strip()} |"


def _default(field: dataclasses.Field[Any], declaration: Any) -> str:
    if field.default_factory is not dataclasses.MISSING:
        factory = field.default_factory
        if isinstance(declaration.kind, SectionKind):
            return "see the section"
        if field.name in _GENERATED:
            return "generated"
        return f"`{json.dumps(declaration.kind.dump(factory()))}`"
    if field.default is None:
        return ""
    return f"`{json.dumps(declaration.kind.dump(field.default))}`"


def _type(kind: Kind[Any]) -> str:
    if isinstance(kind, SectionKind):
        if kind.section not in _sections():
            return "mapping"
        return f"[{_title(kind.section)}](#{_title(kind.section).lower()})"
    if isinstance(kind, ListOf):
        return f"list of {_type(kind.kind)}"
    if isinstance(kind, MapOf):
        return f"mapping to {_type(kind.kind)}"
    if isinstance(kind, Choice):
        return ", ".join(f"`{name}`" for name in kind.names)
    if isinstance(kind, Integer):
        ends = (f"at least {kind.minimum}", kind.minimum), (f"at most {kind.maximum}", kind.maximum)
        return ", ".join(["whole number", *(text for text, end in ends if end is not None)])
    if isinstance(kind, Number):
        return f"number above {kind.above:g}"
    return next((text for known, text in _TYPES.items() if isinstance(kind, known)), "see the description")


def _descriptions(section: type[Section]) -> dict[str, str]:
    """Return field -> description, from the `Attributes` of a section's docstring and of those it extends."""
    described: dict[str, str] = {}
    for holder in reversed(section.__mro__):
        if dataclasses.is_dataclass(holder) and holder.__doc__:
            parsed = griffe.Docstring(inspect.cleandoc(holder.__doc__)).parse("google", warnings=False)
            for part in parsed:
                if part.kind is griffe.DocstringSectionKind.attributes:
                    described |= {item.name: " ".join(item.description.split()) for item in part.value}
    return described
