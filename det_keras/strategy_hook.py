"""Lets `det.core` create a `tf.distribute` strategy without importing TensorFlow.

`DistributedContext.from_tf_config` is in `det.core`, and only `det.keras` may import TensorFlow. The top-level package
`det_keras`, which may import both, registers the function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_maker: Callable[[Mapping[str, str]], Any] | None = None


def set_strategy_maker(maker: Callable[[Mapping[str, str]], Any]) -> None:
    """Register the function that creates strategies.

    Args:
        maker: receives the environment variables and returns a strategy.
    """
    global _maker
    _maker = maker


def make_strategy(environ: Mapping[str, str]) -> Any:
    """Return the `tf.distribute` strategy for the devices of this process.

    Args:
        environ: environment variables; may contain ``TF_CONFIG``.

    Raises:
        DetError: ``TF_CONFIG`` cannot be parsed or names several workers.
    """
    assert _maker is not None, "the package sets it when it is imported"
    return _maker(environ)
