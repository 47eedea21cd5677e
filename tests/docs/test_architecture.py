"""The map in docs/architecture.md, compared with the code."""

from __future__ import annotations

import re

import pytest
from test_imports import ALLOWED, BELOW_EVERYTHING, PACKAGE, names_of

from docs.pages import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
CODE = re.compile(r"`([^`]+)`")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its head."""
    section = PAGE.split(f"\n{heading}\n")[1].split("\n#")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


def first_names(heading: str) -> list[set[str]]:
    """Return the modules and packages that each row is about."""
    return [{name.removesuffix(".py").rstrip("/") for name in CODE.findall(row[0])} for row in rows(heading)]


def inside(folder: str) -> set[str]:
    """Return the modules and packages of a folder of the package."""
    found = {
        path.name.removesuffix(".py")
        for path in (PACKAGE / folder).iterdir()
        # A folder that was renamed may stay behind in a work tree, with compiled files only.
        if path.suffix == ".py" or any(path.glob("*.py"))
    }
    return {name for name in found if not name.startswith("__")}


def test_each_package_is_described():
    described = {name for names in first_names("## Packages") for name in names if "/" not in name}
    assert described == inside("")


def test_table_of_imports_is_the_one_that_is_checked():
    table = {
        # Of `master`, the row of `cli` names the modules.
        package: {name for name in CODE.findall(allowed) if not name.endswith(".py")}
        for packages, allowed in rows("### Which package imports which")
        for package in CODE.findall(packages)
    }
    expected = {name: set(allowed) for name, allowed in ALLOWED.items()}
    assert table == {
        name: allowed
        for name, allowed in expected.items()
        if allowed or name not in {*BELOW_EVERYTHING, "__main__"}
        if name != "__main__"
    }


@pytest.mark.parametrize("package", ["keras", "master"])
def test_each_module_is_in_a_layer_above_those_that_it_imports(package):
    layers = [{name.split("/")[1] for name in names} for names in first_names(f"## Inside {package}/")]
    level = {name: index for index, names in enumerate(layers) for name in names}
    assert set(level) == inside(package)
    prefix = f"det_keras.{package}."
    for path in (PACKAGE / package).rglob("*.py"):
        own = path.relative_to(PACKAGE / package).parts[0].removesuffix(".py")
        if own.startswith("__"):
            continue
        for name in names_of(path).imported:
            target = name.removeprefix(prefix).split(".")[0] if name.startswith(prefix) else own
            if target in level and target != own:
                assert level[target] < level[own], f"{path.relative_to(PACKAGE)} imports {name}"


@pytest.mark.parametrize("package", ["config", "protocol", "search", "storage"])
def test_package_never_reads_the_environment(package):
    assert f"`{package}/`" in PAGE.split("### The environment")[1].split("\n#")[0]
    for path in (PACKAGE / package).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "environ" not in re.findall(r"\bos\.(\w+)", text), path.name
        assert "getenv" not in text, path.name


def test_pages_of_the_master_contain_no_sql():
    for path in (PACKAGE / "master" / "web").rglob("*.py"):
        imported = names_of(path).imported
        assert not any(name.split(".")[0] == "sqlalchemy" or ".master.database" in name for name in imported)
