"""Which way imports run, and what is not imported until it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "det_keras"

# Buffer -> rooms that it may import. `errors`, `home` and the package root stand below everything.
ALLOWED = {
    "__main__": {"cli"},
    "cli": {"client", "config", "storage", "master", "compat"},
    "master": {"search", "config", "storage"},
    "keras": {"core", "client", "storage", "config", "cluster_info", "notebook"},
    "core": {"client", "storage", "config", "cluster_info"},
    "launch": {"core", "cluster_info", "compat"},
    "compat": {"core", "keras", "launch", "experimental"},
    "experimental": {"keras", "client", "notebook"},
    "client": set(),
    "search": {"config"},
    "config": set(),
    "storage": set(),
    "cluster_info": set(),
    "display": set(),
    "home": set(),
    "notebook": set(),
    "errors": set(),
}
BELOW_EVERYTHING = {"display", "errors", "home"}
FOREIGN = {
    "keras": {"tensorflow", "keras", "horovod", "h5py"},
    "master": {"fastapi", "sqlalchemy", "starlette", "uvicorn", "alembic", "argon2", "jinja2", "plotly"},
}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_downward(path):
    room = room_of(path)
    for name in imported_modules(path):
        if name.startswith("det_keras."):
            target = name.split(".")[1]
            if target in ALLOWED and target != room and target not in BELOW_EVERYTHING:
                assert target in ALLOWED[room], f"{room} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_heavy_libraries_stay_in_their_room(path):
    room = room_of(path)
    roots = {name.split(".")[0] for name in imported_modules(path)}
    for owner, libraries in FOREIGN.items():
        if room != owner:
            assert not roots & libraries, f"{room} imports {roots & libraries}"


def test_cli_reaches_into_the_master_only_to_start_one():
    for path in (PACKAGE / "cli").rglob("*.py"):
        for name in imported_modules(path):
            if name.startswith("det_keras.master."):
                assert name.startswith("det_keras.master.process"), f"{path.name} imports {name}"


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
