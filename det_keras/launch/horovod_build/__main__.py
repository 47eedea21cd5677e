"""``python3 -m det_keras.launch.horovod_build``: compile Horovod for the TensorFlow of this environment.

Horovod 0.28.1 is older than TensorFlow 2.19. One of its files, with kernels for GPUs, includes headers of XLA that
TensorFlow has moved since, or ships without what they include. Without a GPU the rest of that file is left out, so that
the empty headers beside this module serve in their place: the compiler finds them first. A build for GPUs needs the
real ones.

Source: ``horovod/tensorflow/xla_mpi_ops.cc`` and ``horovod/tensorflow/CMakeLists.txt`` of Horovod 0.28.1.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from det_keras.errors import DetError

_HEADERS = Path(__file__).with_name("headers")
_HOROVOD = "horovod==0.28.1"
# What Horovod's build and its package need. Its build finds TensorFlow, so it cannot run in an environment of its own.
_NEEDED = ("cloudpickle", "cmake<4", "packaging", "psutil", "pyyaml", "setuptools<81", "wheel")
_PARTS = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
}

_CHECK = """
import horovod.tensorflow, tensorflow
print(f"Horovod was compiled for TensorFlow {tensorflow.__version__}, and can be imported.")
"""


def build(environ: Mapping[str, str]) -> int:
    """Install what the build needs, compile Horovod, and import it.

    Args:
        environ: variables of Horovod's build, such as ``HOROVOD_GPU_OPERATIONS``, take precedence over the defaults.

    Returns:
        The exit code of the step that failed, else 0.

    Raises:
        DetError: there is no TensorFlow, or nothing to install with.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise DetError(
            "Horovod is compiled for one version of TensorFlow. Install that first: `pip install tensorflow`."
        )
    install, again = _installer()
    compile_it = [*install, *again, "--no-deps", "--no-build-isolation", _HOROVOD]
    for command in ([*install, *_NEEDED], compile_it, [sys.executable, "-c", _CHECK]):
        code = subprocess.run(command, env=build_environment(environ), check=False).returncode
        if code:
            return code
    return 0


def build_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the build, with the empty headers unless it is one for GPUs."""
    own = {**_PARTS, **environ}
    if not any(value and name.startswith("HOROVOD_GPU") for name, value in environ.items()):
        own["CPATH"] = os.pathsep.join(filter(None, [str(_HEADERS), environ.get("CPATH")]))
    return own


def _installer() -> tuple[list[str], list[str]]:
    """Return a command that installs packages here, and its options that build one anew."""
    if importlib.util.find_spec("pip") is not None:
        # pip's cache of built packages does not know for which TensorFlow they were built.
        return [sys.executable, "-m", "pip", "install"], ["--no-cache-dir", "--force-reinstall"]
    if (uv := shutil.which("uv")) is not None:
        # uv follows the pyproject.toml of the project around it, which may say how to build Horovod otherwise.
        elsewhere = ["--directory", tempfile.gettempdir()]
        return [uv, "pip", "install", *elsewhere, "--python", sys.executable], ["--no-cache", "--reinstall"]
    raise DetError(f"This environment has no pip, and there is no uv: {sys.executable}.")


def main() -> int:
    """Build Horovod and return the exit code."""
    argparse.ArgumentParser(
        prog="python3 -m det_keras.launch.horovod_build",
        description="Compile Horovod for the TensorFlow of this environment.",
    ).parse_args()
    try:
        return build(os.environ)
    except DetError as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
