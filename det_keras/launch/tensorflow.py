"""Start a script that trains under a `tf.distribute` strategy.

    python3 -m det_keras.launch.tensorflow -- python3 train.py ...

One process uses all GPUs of its machine, so the command replaces the launcher. Several machines would need
MultiWorkerMirroredStrategy, under which Keras 3 cannot train; use `det_keras.launch.distributed` there.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from det_keras.about import LOG_FORMAT
from det_keras.compat import with_determined
from det_keras.launch.command import become


def main(arguments: Sequence[str]) -> int:
    """Replace this process by the command in `arguments`; return only on failure, with an exit code."""
    logging.basicConfig(format=LOG_FORMAT, level=logging.INFO)
    parser = argparse.ArgumentParser(
        prog="det_keras.launch.tensorflow",
        usage="python3 -m det_keras.launch.tensorflow -- COMMAND ...",
        description="Start a script that trains under a tf.distribute strategy.",
    )
    parser.add_argument("--port", type=int, default=0, help="has no effect: one machine needs no port")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    command: list[str] = parser.parse_args(arguments).command
    if command[:1] == ["--"]:
        del command[0]
    if not command:
        parser.error("There is nothing to run. Give the command behind `--`, such as `-- python3 train.py`.")
    return become(command, with_determined(os.environ, first=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
