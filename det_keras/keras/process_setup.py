"""Prepares this process for a training: seeds, precision, determinism, logs, GPUs."""

from __future__ import annotations

import logging
import sys

import keras
import tensorflow as tf

from det_keras.about import LOG_FORMAT
from det_keras.config import ExperimentConfig
from det_keras.core.distributed import DistributedContext
from det_keras.errors import DetError

logger = logging.getLogger(__name__)


def prepare_process(seed: int, config: ExperimentConfig | None, workers: DistributedContext) -> None:
    """Seed Python, NumPy, TensorFlow and Keras, and apply the config's precision and determinism.

    Args:
        seed: the seed of the trial.
        config: the experiment's config, None without one.
        workers: the ranks of this process, which decide its GPU.
    """
    _pin_gpu(workers)
    keras.utils.set_random_seed(seed)
    # By default TensorFlow seeds its global generator from the clock in each process.
    tf.random.set_global_generator(tf.random.Generator.from_seed(seed))
    if config is None:
        return
    if config.reproducibility.deterministic_ops:
        tf.config.experimental.enable_op_determinism()
    if config.optimizations.mixed_precision != "O0":
        keras.mixed_precision.set_dtype_policy("mixed_float16")


def check_eager() -> None:
    """Check that eager execution is enabled.

    Raises:
        DetError: eager execution is off.
    """
    if not tf.executing_eagerly():
        raise DetError(
            "TensorFlow runs without eager execution, which Keras 3 cannot train with. Leave out "
            "`tf.compat.v1.disable_eager_execution()` and `disable_v2_behavior()`; TensorFlow 1 is not supported."
        )


def configure_logs(*, debug: bool) -> None:
    """Show this package's log lines, unless the script has set up logging itself."""
    package = logging.getLogger("det_keras")
    package.setLevel(logging.DEBUG if debug else logging.INFO)
    if debug:
        # A line for each call of the master, which are left out otherwise.
        logging.getLogger("httpx").setLevel(logging.INFO)
    if any(isinstance(handler, _FallbackHandler) for handler in package.handlers):
        return
    handler = _FallbackHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    package.addHandler(handler)


class _FallbackHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Prints records until the root logger is configured."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not logging.getLogger().handlers and bool(super().filter(record))


def prepare_virtual_workers() -> None:
    """Leave nothing in this process that could depend on the number of workers; before TensorFlow starts.

    Raises:
        DetError: TensorFlow has started.
    """
    # TensorFlow's optimizer of graphs would add the parts of this worker in an order of its own.
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    # How an operation divides its work over threads decides the order of its sums. Workers that share a machine have
    # fewer threads each; so each operation gets one, and the operations of different parts run at the same time.
    try:
        tf.config.threading.set_intra_op_parallelism_threads(1)
    except RuntimeError:
        if tf.config.threading.get_intra_op_parallelism_threads() != 1:
            raise DetError(
                "Virtual workers need operations of one thread each, and TensorFlow has started with more. Call "
                "`det.keras.init(...)` before anything else that uses TensorFlow, also `set_random_seed`."
            ) from None


def _pin_gpu(workers: DistributedContext) -> None:
    if workers.size == 1:
        return
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[workers.local_rank % len(gpus)], "GPU")
