"""The `tf.distribute` strategies that Keras 3 can train under."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from det_keras.errors import DetError


def strategy_of(environ: Mapping[str, str]) -> Any:
    """Return the strategy for the devices of this process.

    Args:
        environ: may hold ``TF_CONFIG``.

    Returns:
        `MirroredStrategy` over several GPUs, else TensorFlow's default strategy.

    Raises:
        DetError: ``TF_CONFIG`` cannot be read or names several workers.
    """
    workers = _workers(environ.get("TF_CONFIG") or "{}")
    if workers > 1:
        raise DetError(
            f"TF_CONFIG names {workers} workers, but Keras 3 cannot train under MultiWorkerMirroredStrategy. Train "
            "like this instead: `python3 -m det_keras.launch.distributed -- python3 train.py` and `context.fit`."
        )
    if len(tf.config.list_logical_devices("GPU")) > 1:
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()


def _workers(text: str) -> int:
    try:
        cluster = json.loads(text).get("cluster", {})
        return sum(len(cluster.get(kind, ())) for kind in ("chief", "worker"))
    except (ValueError, AttributeError, TypeError) as error:
        raise DetError(f"TF_CONFIG is no JSON that describes a cluster: {text!r}.") from error
