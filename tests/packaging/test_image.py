"""The image for clusters: what its Dockerfile installs, without Docker."""

from __future__ import annotations

import os
import re
import sys

import pytest
from environments import REPOSITORY, copy_of_tree, run

pytestmark = [pytest.mark.packaging, pytest.mark.process]


def commands(dockerfile):
    """Return the shell commands of a Dockerfile with the defaults of its arguments, and these defaults."""
    text = dockerfile.replace("\\\n", " ")
    arguments = {
        name: value.strip('"') for name, value in re.findall(r"^ARG (\w+)=(.*)$", text, re.MULTILINE)
    }
    return re.findall(r"^RUN (.+)$", text, re.MULTILINE), arguments


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the image has Python 3.11")
def test_packages_of_the_image_fit_together(tmp_path):
    runs, arguments = commands((REPOSITORY / "docker" / "Dockerfile").read_text())
    (install,) = [command for command in runs if "uv export" in command]
    source, venv = copy_of_tree(tmp_path / "src"), tmp_path / "venv"
    run("uv", "venv", "--quiet", "--python", sys.executable, venv)
    script = install.partition("&&")[2].replace("--system", f"--python {venv}").replace("/src", str(source))
    run("sh", "-ec", script, cwd=source, env={**os.environ, **arguments})
    run("uv", "pip", "check", "--python", venv)
    # The last command of the Dockerfile, without what it compiles.
    check = runs[-1].replace("horovod.tensorflow, ", "").replace("python3", f"{venv}/bin/python3")
    run("sh", "-ec", check, cwd=tmp_path, env={"TF_CPP_MIN_LOG_LEVEL": "3"})
    locked = set(
        re.findall(r'^name = "(.+)"\nversion = "(.+)"$', (source / "uv.lock").read_text(), re.MULTILINE)
    )
    found = set(re.findall(r"^([\w-]+)==(\S+)", (source / "packages.txt").read_text(), re.MULTILINE))
    # Determined's own package asks for other versions of a few packages.
    assert {name for name, _ in found - locked}.isdisjoint(
        {"tensorflow", "keras", "numpy", "s3fs", "aiobotocore", "botocore", "gcsfs", "adlfs", "scikit-learn"}
    )
