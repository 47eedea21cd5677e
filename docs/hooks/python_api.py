"""The Python API: one mkdocstrings directive for each name in a module's `__all__`."""

from __future__ import annotations

import ast
from pathlib import Path

__all__ = ["exported_names", "generate"]

_ROOT = Path(__file__).parents[2]


def generate(module: str, heading_level: str = "2") -> str:
    """Return the directives for the names that `module` exports."""
    names = exported_names(module)
    return "\n".join(
        f"::: {module}.{name}\n    options: {{heading_level: {heading_level}}}\n" for name in names
    )


def exported_names(module: str) -> list[str]:
    """Return the classes and functions in `__all__` of a module, which is read and not imported."""
    path = _ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            # Submodules have pages of their own.
            return [name for name in names if not path.parent.joinpath(name).is_dir()]
    raise ValueError(f"{module} has no `__all__`.")
