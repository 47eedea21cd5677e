"""How `det.core` makes a `tf.distribute` strategy without importing TensorFlow.

The name `DistributedContext.from_tf_config` belongs to `det.core`, and only `det.keras` may import TensorFlow. The
package itself, which stands above both, hands the function in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["make_strategy", "set_strategy_maker"]

_maker: Callable[[Mapping[str, str]], Any] | None = None


def set_strategy_maker(maker: Callable[[Mapping[str, str]], Any]) -> None:
    """Record the function that makes strategies.

    Args:
        maker: takes the environment variables.
    """
    global _maker
    _maker = maker


def make_strategy(environ: Mapping[str, str]) -> Any:
    """Return the `tf.distribute` strategy for the devices of this process.

    Args:
        environ: may hold ``TF_CONFIG``.

    Raises:
        DetError: ``TF_CONFIG`` cannot be read or names several workers.
    """
    assert _maker is not None, "the package sets it when it is imported"
    return _maker(environ)
