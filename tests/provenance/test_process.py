"""What a process says of itself."""

from __future__ import annotations

import getpass
import platform
import re
import shutil
import socket
import subprocess
import sys

import pytest

from det_keras.provenance.process import describe_process, installed_packages


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_packages_are_those_of_pip_freeze():
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    done = subprocess.run(
        [uv, "pip", "freeze", "--python", sys.executable], capture_output=True, text=True, check=True
    )
    listed = {}
    for line in done.stdout.splitlines():
        # Editable packages and those from addresses are listed without a version.
        name, equals, version = line.partition("==")
        if equals:
            listed[canonical(name)] = version
    # Some packages, once imported, bring copies of others that are theirs alone.
    code = """
import contextlib, importlib
for name in ("ray", "setuptools"):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
from det_keras.provenance.process import installed_packages
print(*installed_packages(), sep="\\n")
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    found = {
        canonical(name): version for name, _, version in (p.partition("==") for p in printed.splitlines())
    }
    assert len(listed) > 50
    assert listed.items() <= found.items()
    assert found.keys() - listed.keys() <= {"det-keras"}


def test_packages_are_sorted_and_first_on_the_path_wins(tmp_path, monkeypatch):
    for folder, version in (("first", "2"), ("second", "1")):
        place = tmp_path / folder / "Some_Name-1.dist-info"
        place.mkdir(parents=True)
        (place / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: Some.Name\nVersion: {version}\n\nName: no\n"
        )
    broken = tmp_path / "first" / "broken-1.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_bytes(b"\xff\xfe")
    # An egg is a package with an entry of its own; a folder inside of a package has copies for that package alone.
    for folder in ("egg-1.egg/EGG-INFO", "ray/copies/copy-1.dist-info"):
        place = tmp_path / "site-packages" / folder
        place.mkdir(parents=True)
        name = folder.split("-")[0].split("/")[-1]
        for file in ("METADATA", "PKG-INFO"):
            (place / file).write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n\n")
    entries = ["first", "second", "site-packages/egg-1.egg", "site-packages/ray/copies"]
    monkeypatch.setattr(sys, "path", [*(str(tmp_path / entry) for entry in entries), *sys.path])
    found = installed_packages()
    assert "Some.Name==2" in found
    assert "Some.Name==1" not in found
    assert "egg==1" in found
    assert "copy==1" not in found
    assert found == sorted(found, key=str.lower)


def test_process_is_described_by_its_machine_and_command(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_VARIABLE", "hunter2-variable")
    found = describe_process(["python3", "a b.py", "--password", "hunter2", "--lr=1"], tmp_path)
    assert found["command"] == "python3 'a b.py' --password '********' --lr=1"
    assert (found["host"], found["user"]) == (socket.gethostname(), getpass.getuser())
    assert (found["python"], found["directory"]) == (platform.python_version(), str(tmp_path))
    assert "hunter2" not in str(found)
