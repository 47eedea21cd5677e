"""`det experiment create --local`: runs the script in the foreground, without a master."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from det_keras.cli.submission.config_file import ExperimentFile
from det_keras.compat import with_determined
from det_keras.errors import DetError
from det_keras.protocol.engines import ENGINE_VARIABLE

if TYPE_CHECKING:
    import subprocess

#: The variable from which `det.keras.init()` reads the path of the config in a local run.
CONFIG_VARIABLE = "DET_KERAS_LOCAL_CONFIG"


def run_locally(file: ExperimentFile, directory: Path) -> int:
    """Run the entrypoint in `directory` and return its exit code.

    Raises:
        DetError: the directory does not exist, or the command cannot be started.
    """
    # Imported here: `det --help` does not need them.
    import subprocess
    import tempfile

    if not directory.is_dir():
        raise DetError(f"The context directory {str(directory)!r} does not exist.")
    # Its mode is 0600: the config may contain secrets.
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", prefix="det-config-", encoding="utf-8") as config:
        config.write(file.text)
        config.flush()
        environment = environment_of(os.environ, file, config.name)
        try:
            process = subprocess.Popen(command_of(file), cwd=directory, env=environment)
        except OSError as error:
            raise DetError(
                f"The entrypoint cannot be started: {error.filename}: {error.strerror}."
            ) from error
        return _exit_code(process)


def command_of(file: ExperimentFile) -> list[str]:
    """Return the command that runs the entrypoint."""
    trial_class = file.config.trial_class
    if trial_class is not None:
        return [sys.executable, "-m", "det_keras.keras.generations.trial", trial_class]
    return list(file.config.command())


def environment_of(inherited: Mapping[str, str], file: ExperimentFile, config: str) -> dict[str, str]:
    """Return the environment of a local run.

    Args:
        inherited: the environment of this process; variables of a surrounding task are removed.
        file: the config.
        config: path of the config file.
    """
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith("DET_") or name.startswith("DET_KERAS_")
    }
    # `python3` is the Python with det_keras, as in a trial.
    search_path = [str(Path(sys.executable).parent), kept.get("PATH", os.defpath)]
    environment = {
        # The launcher reads no config.
        ENGINE_VARIABLE: file.config.optimizations.collective_engine,
        **kept,
        "PATH": os.pathsep.join(search_path),
        **file.config.environment.environment_variables_for("cpu"),
        CONFIG_VARIABLE: config,
    }
    return with_determined(environment)


def _exit_code(process: subprocess.Popen[bytes]) -> int:
    while True:
        try:
            code = process.wait()
            # Death by signal N is 128 + N, as shells report it.
            return 128 - code if code < 0 else code
        except KeyboardInterrupt:
            # The terminal interrupts the script as well, which may handle it: wait for its end.
            continue
