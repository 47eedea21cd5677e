"""What is built: the same bytes each time, complete, and fit for the index."""

from __future__ import annotations

import tarfile
import zipfile

import pytest
from environments import REPOSITORY, build, copy_of_tree, run

pytestmark = pytest.mark.packaging

STATIC = REPOSITORY / "det_keras/master/web/static"


def test_builds_of_two_checkouts_are_equal_byte_for_byte(built, tmp_path):
    again = build(copy_of_tree(tmp_path / "tree"), tmp_path / "dist")
    for kind, path in built.items():
        assert path.read_bytes() == again[kind].read_bytes(), kind


def test_wheel_has_every_file_of_the_package(built):
    packaged = set(zipfile.ZipFile(built["wheel"]).namelist())
    tracked = run("git", "ls-files", "det_keras", cwd=REPOSITORY).stdout.splitlines()
    assert not set(tracked) - packaged


def test_scripts_of_others_come_with_their_licences(built):
    # A script of others is taken in as it is released: minified. uPlot's licence is `licenses/uPlot.txt`.
    scripts = [*STATIC.rglob("*.min.js"), *STATIC.rglob("*.min.css")]
    folder = "det_keras/master/web/static/licenses"
    wanted = {"LICENSE", *(f"{folder}/{path.name.partition('.')[0]}.txt" for path in scripts)}
    wheel = zipfile.ZipFile(built["wheel"]).namelist()
    with tarfile.open(built["sdist"]) as sdist:
        assert not wanted - {name.partition("/")[2] for name in sdist.getnames()}
    assert not wanted - {name.partition(".dist-info/licenses/")[2] for name in wheel}


def test_twine_accepts_sdist_and_wheel(built):
    checked = run("twine", "check", "--strict", *built.values()).stdout
    assert checked.count("PASSED") == 2


def test_wheel_installs_and_its_command_runs(bare):
    assert "det-keras" in bare.distributions()
    assert bare.run("det", "--help").stdout.startswith("usage: det")


@pytest.mark.parametrize("extra", ["and-cuda", "tensorflow", "tensorflow-cpu"])
def test_each_extra_with_tensorflow_brings_the_package_it_is_named_after(built, extra):
    requirement = f"det_keras[{extra}] @ file://{built['wheel']}"
    resolved = run(
        "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "-", input=requirement
    ).stdout
    names = {line.partition("==")[0] for line in resolved.splitlines()}
    wanted = "tensorflow-cpu" if extra == "tensorflow-cpu" else "tensorflow"
    assert {name for name in names if name in ("tensorflow", "tensorflow-cpu")} == {wanted}
    assert any(name.startswith("nvidia-") for name in names) == (extra == "and-cuda")
