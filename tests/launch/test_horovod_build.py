"""How Horovod is compiled: with a pip and a uv that only note what they are asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import det_keras

# A `python -m pip`, and a Horovod, as far as this test needs them.
PIP = """
import json, os, sys
names = [name for name in os.environ if name.startswith("HOROVOD_WITH") or name == "CPATH"]
with open(os.environ["ASKED"], "a") as asked:
    print(json.dumps([sys.argv[1:], {name: os.environ[name] for name in names}]), file=asked)
sys.exit(int(os.environ.get("PIP_FAILS", 0)))
"""
FILES = {"pip/__main__.py": PIP, "pip/__init__.py": "", "tensorflow.py": '__version__ = "9.9"\n'}
HOROVOD = {"horovod/__init__.py": "", "horovod/tensorflow.py": ""}


@pytest.fixture
def build(tmp_path):
    """Run the build among packages of the test's own; return the process and what pip was asked."""

    def run(files, **variables):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        asked = tmp_path / "asked"
        (tmp_path / "det_keras").symlink_to(Path(det_keras.__file__).parent)
        # Without the packages of this environment, so that those above are all.
        done = subprocess.run(
            [sys.executable, "-S", "-m", "det_keras.launch.horovod_build"],
            env={"PATH": "", "PYTHONPATH": str(tmp_path), "ASKED": str(asked), **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        return done, [json.loads(line) for line in asked.read_text().splitlines()] if asked.exists() else []

    return run


def test_headers_stand_in_for_those_that_newer_versions_lack(build):
    done, (first, second) = build({**FILES, **HOROVOD}, CPATH="/mine")
    assert done.returncode == 0, done.stderr
    assert "setuptools<81" in first[0]
    assert second[0][-2:] == ["--no-build-isolation", "horovod==0.28.1"]
    assert {"--force-reinstall", "--no-deps", "--no-cache-dir"} <= set(second[0])
    headers, given = second[1].pop("CPATH").split(os.pathsep)
    assert given == "/mine"
    for name in ("tf2xla/xla_op_kernel", "tf2xla/xla_op_registry", "xla/client/xla_builder", "xla/shape"):
        assert "#pragma once" in (Path(headers) / "tensorflow" / "compiler" / f"{name}.h").read_text()
    assert second[1]["HOROVOD_WITH_TENSORFLOW"] == "1"
    assert "Horovod was compiled for TensorFlow 9.9" in done.stdout


def test_build_for_gpus_gets_the_real_headers(build):
    _, (_, second) = build({**FILES, **HOROVOD}, HOROVOD_GPU_OPERATIONS="NCCL", HOROVOD_WITHOUT_MPI="0")
    assert "CPATH" not in second[1]
    assert second[1]["HOROVOD_WITHOUT_MPI"] == "0"


def test_failure_of_a_step_is_that_of_the_build(build):
    done, asked = build(FILES, PIP_FAILS="7")
    assert (done.returncode, len(asked)) == (7, 1)


def test_horovod_that_cannot_be_imported_is_a_failure(build):
    done, _ = build(FILES)
    assert done.returncode == 1
    assert "was compiled" not in done.stdout


def test_uv_is_asked_as_if_there_were_no_project_around(build, tmp_path):
    """Its settings for builds would stand in the way: those of our own project did."""
    files = {name: text for name, text in FILES.items() if not name.startswith("pip/")}
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "uv").write_text(f"#!{sys.executable}\n{PIP}")
    (tools / "uv").chmod(0o755)
    done, (first, second) = build({**files, **HOROVOD}, PATH=str(tools), TMPDIR=str(tools))
    assert done.returncode == 0, done.stderr
    for words, _ in (first, second):
        assert words[:4] == ["pip", "install", "--directory", str(tools)]
    assert {"--reinstall", "--no-deps", "--no-cache"} <= set(second[0])


def test_what_is_missing_is_told(build):
    without = {name: text for name, text in FILES.items() if name != "tensorflow.py"}
    done, asked = build(without)
    assert (done.returncode, asked) == (1, [])
    assert "Install that first: `pip install tensorflow`" in done.stderr
