"""The name `determined`: found by what our launchers start, never in front of another one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from det_keras.compat import with_determined


def run(code, **environ):
    """Run Python code where the package is on the path."""
    environ = with_determined({**os.environ, **environ})
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=False
    )


def test_names_are_those_of_this_package():
    done = run(
        "import determined as det, determined.core, determined.errors, det_keras\n"
        "assert det.core.init is det_keras.core.init and det.InvalidHP is det_keras.InvalidHP\n"
        "assert det.get_cluster_info() is None and 'levelname' in det.LOG_FORMAT\n"
        "from determined import core\n"
        "from determined.core import DistributedContext, PreemptMode\n"
        "print(det.__version__)"
    )
    assert done.stdout == "0.38.1+det.keras\n", done.stderr


def test_importing_it_imports_no_tensorflow():
    done = run("import sys, determined as det; det.core.init; print('tensorflow' in sys.modules)")
    assert done.stdout == "False\n", done.stderr


def test_installed_determined_comes_first(tmp_path):
    (tmp_path / "determined").mkdir()
    (tmp_path / "determined" / "__init__.py").write_text("from determined import part\nwhose = 'theirs'\n")
    (tmp_path / "determined" / "part.py").write_text("value = 1\n")
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import determined as d; print(d.whose, d.part.value)"
    assert run(code).stdout == "theirs 1\n"
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import determined; print(determined.whose)"
    assert run(code).stdout == "theirs\n"


@pytest.mark.parametrize("module", ["tensorflow", "distributed"])
def test_launchers_put_the_package_before_an_installed_one(tmp_path, module):
    (tmp_path / "determined").mkdir()
    (tmp_path / "determined" / "__init__.py").write_text("__version__ = 'theirs'\n")
    command = [sys.executable, "-c", "import determined; print(determined.__version__)"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-m", f"det_keras.launch.{module}", "--", *command],
        capture_output=True, text=True, env=environ, check=False,
    )  # fmt: skip
    assert done.stdout == "0.38.1+det.keras\n", done.stderr
    environ["DET_KERAS_COMPAT"] = "0"
    done = subprocess.run(
        [sys.executable, "-m", f"det_keras.launch.{module}", "--", *command],
        capture_output=True, text=True, env=environ, check=False,
    )  # fmt: skip
    assert done.stdout == "theirs\n", done.stderr


def test_plain_folder_of_the_name_is_no_package(tmp_path):
    (tmp_path / "determined").mkdir()
    (tmp_path / "determined" / "const.yaml").write_text("a: 1")
    done = run(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import determined as d; print(d.core.init.__name__)"
    )
    assert done.stdout == "init\n", done.stderr


def test_switch_keeps_it_away():
    assert with_determined({"DET_KERAS_COMPAT": "0", "PYTHONPATH": "a"})["PYTHONPATH"] == "a"
    # Also where a parent process had put it on the path.
    path = with_determined({})["PYTHONPATH"]
    done = run("import determined", DET_KERAS_COMPAT="0", PYTHONPATH=path)
    assert "No module named 'determined'" in done.stderr
    assert "DET_KERAS_COMPAT=0" in done.stderr


def test_path_is_kept_and_the_folder_added_once():
    once = with_determined({"PYTHONPATH": os.pathsep.join(["a", "b"])})
    assert once["PYTHONPATH"].split(os.pathsep)[:2] == ["a", "b"]
    assert with_determined(once) == once


def test_unknown_names_say_what_there_is():
    done = run("import determined; determined.pytorch")
    assert "no attribute 'pytorch'" in done.stderr
    assert "core, errors" in done.stderr


@pytest.mark.parametrize("module", ["determined.launch.tensorflow", "det_keras.launch.tensorflow"])
def test_launcher_becomes_the_command(tmp_path, module):
    script = tmp_path / "train.py"
    script.write_text("import sys, determined\nprint(determined.__version__, sys.argv[1:])\nsys.exit(3)\n")
    command = [sys.executable, "-m", module, "--", sys.executable, str(script), "--x", "1"]
    environ = with_determined(os.environ) if module.startswith("determined") else dict(os.environ)
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert (done.returncode, done.stdout) == (3, "0.38.1+det.keras ['--x', '1']\n"), done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [([], 2, "nothing to run"), (["--", "no-such-program"], 127, "'no-such-program' was not found")],
)
def test_launcher_without_a_command_says_so(arguments, code, message):
    command = [sys.executable, "-m", "det_keras.launch.tensorflow", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert message in done.stderr


def test_package_is_in_the_folder_that_is_put_on_the_path():
    assert (Path(with_determined({})["PYTHONPATH"]) / "determined" / "__init__.py").is_file()


def test_two_copies_of_the_package_on_the_path_are_no_ring(tmp_path):
    copy = tmp_path / "det_keras" / "compat" / "path"
    shutil.copytree(Path(with_determined({})["PYTHONPATH"]), copy)
    done = run("import determined; print(determined.__version__)", PYTHONPATH=str(copy))
    assert done.stdout == "0.38.1+det.keras\n", done.stderr
