"""Which way imports run, and what is not imported until it is needed."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "det_keras"

# Package -> packages that it may import; docs/architecture.md has the same table. What is in `BELOW_EVERYTHING` may be
# imported everywhere.
ALLOWED = {
    "__main__": {"cli"},
    "cli": {
        "client",
        "connection",
        "config",
        "importing",
        "storage",
        "master",
        "compat",
        "protocol",
        "provenance",
        "verification",
    },
    "importing": {"protocol"},
    "verification": {"checkpoint_comparison", "config"},
    "master": {"client", "cluster_info", "search", "config", "storage", "protocol", "launch"},
    "keras": {
        "checkpoint_comparison",
        "checkpoint_format",
        "core",
        "client",
        "connection",
        "storage",
        "config",
        "cluster_info",
        "frame",
        "notebook",
        "protocol",
        "workers",
    },
    "core": {"client", "storage", "cluster_info", "protocol", "provenance", "strategy_hook", "workers"},
    "launch": {"cluster_info", "compat", "protocol", "workers"},
    "workers": {"cluster_info"},
    "compat": {"cluster_info", "core", "keras", "launch", "experimental"},
    "experimental": {"keras", "client", "connection", "frame", "notebook", "protocol"},
    "connection": {"client", "config", "protocol", "storage"},
    "provenance": {"config", "protocol"},
    "client": {"protocol"},
    "search": {"config"},
    "config": set(),
    "storage": set(),
    "checkpoint_comparison": {"checkpoint_format"},
    "checkpoint_format": set(),
    "cluster_info": set(),
    "display": {"protocol"},
    "frame": set(),
    "home": set(),
    "notebook": set(),
    "protocol": set(),
    "strategy_hook": set(),
    "about": set(),
    "errors": set(),
    "files": set(),
    "scratch": set(),
}
BELOW_EVERYTHING = {"about", "display", "errors", "files", "home", "scratch"}
MOST_FILES = 20
FOREIGN = {
    "keras": {"tensorflow", "keras", "horovod", "h5py"},
    "master": {
        "client",
        "fastapi",
        "sqlalchemy",
        "starlette",
        "uvicorn",
        "alembic",
        "argon2",
        "jinja2",
        "plotly",
    },
}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@dataclass(frozen=True)
class Names:
    """What a file names; without its syntax tree, so that the trees of all files are not kept.

    Attributes:
        imported: the modules that it imports anywhere in it, also those that only type checkers import.
        read: the private names that it reads from objects.
        own: the names that it gives to its own objects.
    """

    imported: frozenset[str]
    read: frozenset[str]
    own: frozenset[str]


@functools.cache
def names_of(path: Path) -> Names:
    """Return what a file names; each file is parsed once for all tests."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    read, own = attributes(nodes)
    private = {name for name in read if re.match("_[^_]", name)}
    return Names(frozenset(modules(nodes)), frozenset(private), frozenset(own))


def modules(nodes: list[ast.AST]) -> set[str]:
    """Return the modules that a file imports."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func) and node.args:
            names.update(argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant))
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def attributes(nodes: list[ast.AST]) -> tuple[set[str], set[str]]:
    """Return the names that a file reads from objects, and those that it gives to its own."""
    read, own = set(), set()
    for node in nodes:
        if isinstance(node, ast.Attribute):
            (read if isinstance(node.ctx, ast.Load) else own).add(node.attr)
        elif isinstance(node, ast.FunctionDef):
            own.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own.add(node.target.id)
    return read, own


EVERY_FILE = sorted(PACKAGE.rglob("*.py"))
FILES = [path for path in EVERY_FILE if path != PACKAGE / "__init__.py"]


def refuse(paths: Iterable[Path], is_wrong: Callable[[str, str], bool]) -> None:
    """Fail with every import of which `is_wrong(room, module)` is true."""
    found = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in paths
        for name in sorted(names_of(path).imported)
        if is_wrong(room_of(path), name)
    ]
    assert not found, "\n".join(found)


def test_imports_run_downward():
    def runs_upward(room: str, name: str) -> bool:
        package, _, rest = name.partition(".")
        target = rest.partition(".")[0]
        if package != "det_keras" or target not in ALLOWED:
            return False
        return target not in {room, *BELOW_EVERYTHING, *ALLOWED[room]}

    refuse(FILES, runs_upward)


def test_heavy_libraries_stay_in_their_room():
    def is_foreign(room: str, name: str) -> bool:
        return any(
            name.partition(".")[0] in libraries for owner, libraries in FOREIGN.items() if owner != room
        )

    refuse(FILES, is_foreign)


PRIVATE_API = PACKAGE / "keras" / "private_api"


def test_private_names_of_keras_and_tensorflow_are_in_one_folder():
    others = [path for path in FILES if PRIVATE_API not in path.parents]
    refuse(others, lambda _, name: name.startswith(("keras.src", "tensorflow.python")))


def test_private_attributes_of_keras_and_tensorflow_are_in_one_folder():
    files = [path for path in FILES if PACKAGE / "keras" in path.parents and PRIVATE_API not in path.parents]
    known = {"_exit"}.union(*(names_of(path).own for path in files))
    found = [
        f"{path.relative_to(PACKAGE)} reads {name}"
        for path in files
        for name in sorted(names_of(path).read - known)
    ]
    assert not found, "\n".join(found)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def rings(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Return what imports itself by way of others, from `name -> names that it imports`."""
    sorter = graphlib.TopologicalSorter(arrows)
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        return [error.args[1]]
    return []


def test_no_ring_of_files():
    modules = {module_of(path): path for path in EVERY_FILE}
    arrows = {
        name: {imported for imported in names_of(path).imported if imported in modules}
        - {name, *parents_of(name)}
        for name, path in modules.items()
    }
    assert rings(arrows) == []


def parents_of(name: str) -> list[str]:
    """Return the packages around a module: `from package import submodule` names them, and needs them anyway."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


@pytest.mark.parametrize("room", ["keras", "master"])
def test_arrows_between_the_rooms_of_a_room_run_one_way(room):
    folder = PACKAGE / room
    prefix = f"det_keras.{room}."
    arrows: dict[str, set[str]] = {}
    for path in folder.rglob("*.py"):
        inner = path.relative_to(folder).parts[0].removesuffix(".py")
        if inner == "__init__":
            continue
        targets = {
            name.removeprefix(prefix).split(".")[0]
            for name in names_of(path).imported
            if name.startswith(prefix)
        }
        known = {
            target for target in targets if (folder / target).is_dir() or (folder / f"{target}.py").exists()
        }
        arrows.setdefault(inner, set()).update(known - {inner})
    assert rings(arrows) == []


def test_no_folder_is_too_full():
    files = Counter(path.parent for path in EVERY_FILE if path.name != "__init__.py")
    too_full = {
        str(folder.relative_to(PACKAGE)): count for folder, count in files.items() if count > MOST_FILES
    }
    assert too_full == {}


def test_cli_reaches_into_the_master_only_to_start_one_and_for_its_data():
    reached = tuple(f"det_keras.master.{name}" for name in ("process", "copying", "archive", "integrity"))

    def reaches_too_far(_: str, name: str) -> bool:
        return name.startswith("det_keras.master.") and not name.startswith(reached)

    refuse((path for path in FILES if room_of(path) == "cli"), reaches_too_far)


def loaded_by(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after `code`."""
    script = f"import sys\n{code}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


HEAVY = {"tensorflow", "keras", "fastapi", "sqlalchemy", "httpx", "numpy", "pydantic", "re2", "rich", "yaml"}


def test_importing_the_package_imports_nothing_heavy():
    assert not loaded_by("import det_keras") & HEAVY


def test_cluster_info_and_core_need_no_tensorflow():
    assert not loaded_by("import det_keras as det; det.get_cluster_info(); det.core.init") & {
        "tensorflow",
        "keras",
    }


def test_script_api_without_tensorflow_names_what_to_install():
    code = "import sys; sys.modules['tensorflow'] = None; import det_keras; det_keras.keras"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.count("Traceback") == 1
    assert "`pip install 'det_keras[tensorflow]'`" in done.stderr.splitlines()[-1]


def test_help_imports_nothing_heavy():
    code = (
        "import contextlib, io\nfrom det_keras.cli.main import main\nsys.argv = ['det', '--help']\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n    main()\n"
    )
    assert not loaded_by(code) & HEAVY
