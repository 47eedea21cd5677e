"""A script that runs without the master: modules of the pages in one text."""

from __future__ import annotations

import functools
import re

from det_keras.master.web.rendering import static_files

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function|class|const) (\w+)", re.MULTILINE)
_EXPORT_LIST = re.compile(r"^export \{([^}]*)\};$", re.MULTILINE)


@functools.cache
def bundle(name: str) -> str:
    """Return a module of the pages with all that it imports.

    Each module becomes a function that is called once and returns what it exports, so that its other names stay its
    own. The module itself comes last, outside of a function: it may wait.

    Args:
        name: file name of the module.
    """
    made: dict[str, str] = {}
    _add(name, made)
    *needed, last = made.items()
    parts = [f"const {_variable(known)} = (() => {{\n{text}\n}})();" for known, text in needed]
    return "\n".join([*parts, last[1]])


def _add(name: str, made: dict[str, str]) -> None:
    text = static_files()[name].read_text(encoding="utf-8")
    for _, needed in _IMPORT.findall(text):
        if needed not in made:
            _add(needed, made)
    text = _IMPORT.sub(lambda found: f"const {{{_names(found[1])}}} = {_variable(found[2])};", text)
    exported = [name for _, name in _EXPORT.findall(text)]
    exported += [name.strip() for names in _EXPORT_LIST.findall(text) for name in names.split(",")]
    text = _EXPORT_LIST.sub("", _EXPORT.sub(r"\1 \2", text))
    made[name] = f"{text}\nreturn {{ {', '.join(exported)} }};" if exported else text


def _names(imported: str) -> str:
    """Return imported names for a destructuring, where a new name follows a colon."""
    return re.sub(r"\s+as\s+", ": ", imported)


def _variable(name: str) -> str:
    return "module_" + re.sub(r"\W", "_", name)
