"""Reads and writes YAML: what a config file may contain, and how it is written back.

PyYAML implements YAML 1.1, in which `1e-4` is text, `22:22` is the number 1342 and `2024-01-01` is a date. Determined,
like most users, takes them for a number and two texts, and so does this loader. It refuses values that JSON does not
have, and keys that are given twice, even in different spellings.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import yaml

from det_keras.errors import ConfigError, ConfigProblem

_FLOAT_TAG = "tag:yaml.org,2002:float"
_INT_TAG = "tag:yaml.org,2002:int"
_MERGE_TAG = "tag:yaml.org,2002:merge"
_TIMESTAMP_TAG = "tag:yaml.org,2002:timestamp"
_PLAIN_TAGS = ("null", "bool", "int", "float", "str", "seq", "map")
_SCALAR_TAGS = [f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str")]

_FLOAT = re.compile(
    r"""^(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
_INT = re.compile(r"^(?:[-+]?0b[0-1_]+|[-+]?0[0-7_]+|[-+]?0x[0-9a-fA-F_]+|[-+]?(?:0|[1-9][0-9_]*))$")

# With aliases, a few lines can represent more values than fit in memory, or contain themselves. No real config reaches
# these limits.
_MAX_VALUES = 1_000_000
_MAX_DEPTH = 100


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the rules of this module."""

    _merged = 0

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Replace the merge keys of a mapping by what they merge, up to a limit for the whole document.

        PyYAML before 6.0.4 copies merged entries without a limit: ten lines that merge the line before ten times are
        10 billion. Later ones copy an entry only once into the same mapping.
        """
        for key, value in node.value:
            if key.tag == _MERGE_TAG:
                for part in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    self._count_merged(part)
        super().flatten_mapping(node)

    def _count_merged(self, part: yaml.Node) -> None:
        if not isinstance(part, yaml.MappingNode):
            return
        self.flatten_mapping(part)
        self._merged += len(part.value)
        if self._merged > _MAX_VALUES:
            raise yaml.constructor.ConstructorError(
                None, None, f"merge keys (`<<`) add more than {_MAX_VALUES} values", part.start_mark
            )


class _Dumper(yaml.SafeDumper):
    """Quotes all text that PyYAML or this loader would read as another type."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write every value completely, without generated anchors."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # PyYAML 6.0 does not escape these line separators in its other styles, and reads them back as blanks.
    # Other parsers of YAML 1.1, such as that of a Determined master, read a single letter as a boolean.
    style = '"' if set(text) & set("\x85\u2028\u2029") or text in ("y", "Y", "n", "N") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _construct_text(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    text = loader.construct_scalar(node)
    try:
        # JSON writes characters beyond 16 bits as two escapes, which PyYAML does not combine.
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise yaml.constructor.ConstructorError(
            None, None, "found half of a character (a surrogate without its other half)", node.start_mark
        ) from None


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    number = yaml.SafeLoader.construct_yaml_int(loader, node)
    # Raises ValueError if it has more digits than Python converts, which hexadecimal numbers may have.
    str(number)
    return int(number)


def _plain_constructors() -> dict[Any, Any]:
    safe = yaml.SafeLoader.yaml_constructors
    return {tag: safe[tag] for tag in (None, *(f"tag:yaml.org,2002:{name}" for name in _PLAIN_TAGS))}


def _resolvers_without_numbers_and_dates() -> dict[Any, Any]:
    replaced = (_FLOAT_TAG, _INT_TAG, _TIMESTAMP_TAG)
    return {
        first: [(tag, pattern) for tag, pattern in pairs if tag not in replaced]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.yaml_constructors = _plain_constructors()
_Loader.add_constructor("tag:yaml.org,2002:str", _construct_text)
_Loader.add_constructor(_INT_TAG, _construct_int)
_Loader.yaml_implicit_resolvers = _resolvers_without_numbers_and_dates()
_Loader.add_implicit_resolver(_FLOAT_TAG, _FLOAT, list("-+0123456789."))
_Loader.add_implicit_resolver(_INT_TAG, _INT, list("-+0123456789"))
_Dumper.add_representer(str, _represent_text)
_Dumper.add_implicit_resolver(_FLOAT_TAG, _FLOAT, list("-+0123456789."))


def load_yaml(text: str, *, source: str = "<config>", may_be_empty: bool = False) -> dict[str, Any]:
    """Return the mapping of a YAML document.

    Args:
        text: one YAML document; JSON is YAML.
        source: its name in error messages, such as the file's name.
        may_be_empty: whether a document without a value, such as only comments, is the empty mapping.

    Raises:
        ConfigError: the text is not YAML, empty or not a mapping, has a key twice, or a value with a tag other
            than those of JSON; the message has the line.
    """
    # Text with only a tab is blank, but not valid YAML.
    value = _load(text, source) if text.strip() else None
    if value is None and may_be_empty:
        return {}
    if value is None:
        raise ConfigError.at("", f"{source} is empty. Write at least an `entrypoint`.")
    if not isinstance(value, dict):
        raise ConfigError.at(
            "", f"{source} has a {_kind_name(value)} at the top. Write a mapping: lines of `field: value`."
        )
    ensure_tree(value)
    return value


def parse_scalar(text: str) -> Any:
    """Return the value of a YAML scalar; other text is returned unchanged."""
    try:
        value = _load(text, "<value>")
    except ConfigError:
        return text
    return text if isinstance(value, (dict, list)) else value


def dump_yaml(value: Mapping[str, Any]) -> str:
    """Return `value` as YAML that can be read back unchanged; keys keep their order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def ensure_tree(value: Any) -> None:
    """Check that `value` does not contain itself, and is not too deep or too large.

    Raises:
        ConfigError: it contains itself, or exceeds a limit.
    """
    level: list[Any] = [value]
    count = 0
    for _ in range(_MAX_DEPTH):
        # Stops at the limit: the next level of aliases may be a thousand times as large.
        level = list(islice((child for parent in level for child in _children(parent)), _MAX_VALUES + 1))
        count += len(level)
        if not level:
            return
        if count > _MAX_VALUES:
            raise ConfigError.at(
                "", f"the config has more than {_MAX_VALUES} values. Use fewer YAML aliases."
            )
    raise ConfigError.at(
        "", f"the config is nested more than {_MAX_DEPTH} deep, or an alias contains itself."
    )


def to_plain(value: Any, path: str, *, text_keys: bool = True) -> Any:
    """Return a copy of `value` that consists of JSON values.

    Args:
        value: from YAML, or from Python.
        path: its path in the config, for the error.
        text_keys: whether keys become text, as in Determined.

    Raises:
        ConfigError: a value in it is not a mapping, list, text, finite number, boolean or null.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, numbers.Real):  # NumPy's numbers, too
        if isinstance(value, numbers.Integral):
            return int(value)
        if not math.isfinite(value):
            # A script would get a text in its place: a config travels as JSON.
            raise ConfigError.at(
                path, f"{float(value)} is no number that a config can have. Write a large number, or null."
            )
        return float(value)
    if isinstance(value, Mapping):
        prefix = f"{path}." if path else ""
        return {
            (key_text(key) if text_keys else key): to_plain(
                item, f"{prefix}{key_text(key)}", text_keys=text_keys
            )
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [to_plain(item, f"{path}[{index}]", text_keys=text_keys) for index, item in enumerate(value)]
    raise ConfigError.at(
        path,
        f"{value!r} is a {type(value).__name__}. Use mappings, lists, texts, numbers, booleans and null.",
    )


def key_text(key: Any) -> str:
    """Return a key of a mapping as text, as in JSON."""
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    return str(key)


def _load(text: str, source: str) -> Any:
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        problems = list(_duplicate_keys(node, loader))
        if problems:
            raise ConfigError(problems)
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ConfigError.at("", _syntax_message(error, source)) from error
    except RecursionError:
        raise ConfigError.at("", f"{source} is nested too deeply.") from None
    except ValueError as error:
        # For example an integer with more digits than Python converts, or `0x_`.
        raise ConfigError.at("", f"{source} has a value that cannot be read: {error}.") from error
    finally:
        if loader is not None:
            loader.dispose()


def _duplicate_keys(root: yaml.Node, loader: _Loader) -> Iterator[ConfigProblem]:
    # Checked before the construction, in which keys merged by `<<` would look like duplicates.
    seen: set[int] = set()
    pending = [(root, "")]
    while pending:
        node, path = pending.pop(0)
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            pending.extend((item, f"{path}[{index}]") for index, item in enumerate(node.value))
        if not isinstance(node, yaml.MappingNode):
            continue
        first: dict[Any, yaml.ScalarNode] = {}
        for key, value in node.value:
            below = f"{path}.{key.value}" if path else str(key.value)
            pending.append((value, below))
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE_TAG:
                continue
            names = _names_of(key, loader)
            earlier = next((first[name] for name in names if name in first), None)
            if earlier is not None:
                yield ConfigProblem(below, _twice(earlier, key))
            for name in names:
                first.setdefault(name, key)


def _names_of(key: yaml.ScalarNode, loader: _Loader) -> tuple[Any, ...]:
    """Return a key as a key of a Python dict, in which 1 and true are equal, and as text, as in JSON."""
    if key.tag not in _SCALAR_TAGS:
        return (key.value,)  # `=`, or a key that is refused when it is constructed
    value = loader.construct_object(key)
    return value, key_text(value)


def _twice(earlier: yaml.ScalarNode, key: yaml.ScalarNode) -> str:
    marks = earlier.start_mark, key.start_mark
    places = [f"line {mark.line + 1}, column {mark.column + 1}" for mark in marks]
    if earlier.value == key.value:
        return f"given twice, on {places[0]}, and on {places[1]}. Keep one of them."
    return (
        f"given twice, as `{earlier.value}` on {places[0]}, and as `{key.value}` on {places[1]}: both are the "
        "same key. Keep one of them."
    )


def _syntax_message(error: yaml.YAMLError, source: str) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return f"{source}{where}, is not valid YAML: {problem}."


def _children(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else []


def _kind_name(value: Any) -> str:
    return "list" if isinstance(value, list) else f"single value ({value!r})"
