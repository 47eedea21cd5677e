"""Two hosts on one machine, and what Horovod is spared."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from amount import AMOUNT

TWO_HOSTS = Path(__file__).parent / "two_hosts.py"


def pytest_collection_modifyitems(config, items):
    """Leave out what engines do not see, over Horovod, unless all is asked for."""
    kept, left_out = [], []
    for item in items:
        is_spared = item.get_closest_marker("above_engines") and item.callspec.params["engine"] == "horovod"
        (left_out if is_spared and AMOUNT != "all" else kept).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.fixture
def on_two_hosts(tmp_path):
    """Run a command on the host ``first``, from which ``ssh second`` leads to another; return what it printed."""
    # Root of the machine can become other accounts in there.
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    namespaces = ["unshare", *user, "--net", "--uts", "--mount"]
    tools = ("unshare", "nsenter", "ip", "mount", "hostname")
    if not all(map(shutil.which, tools)) or subprocess.run([*namespaces, "true"], check=False).returncode:
        pytest.skip("network namespaces cannot be made here")

    def run_command(*command):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [*namespaces, sys.executable, str(TWO_HOSTS), str(tmp_path), *command],
            env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout

    return run_command
