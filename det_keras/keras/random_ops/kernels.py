"""The stateless forms of TensorFlow's random ops, which draw the same numbers from a generator."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

_PHILOX = 1


def _skip(generator: tf.random.Generator, shape: Any) -> dict[str, Any]:
    """Let a generator draw numbers for a shape, and return the arguments of the op that computes them."""
    # Few ops: a step may have many of these, and tracing each op takes time.
    known = tf.get_static_value(shape)
    count = tf.reduce_prod(tf.cast(shape, tf.int64)) if known is None else math.prod(known.tolist())
    counter, key = tf.split(tf.bitcast(generator.skip(count), tf.uint64), [2, 1])
    return {"shape": shape, "counter": counter, "key": key, "alg": _PHILOX}


def _normal(generator: tf.random.Generator, shape: Any, dtype: Any, name: str | None) -> Any:
    return tf.raw_ops.StatelessRandomNormalV2(**_skip(generator, shape), dtype=dtype, name=name)


def _truncated_normal(generator: tf.random.Generator, shape: Any, dtype: Any, name: str | None) -> Any:
    return tf.raw_ops.StatelessTruncatedNormalV2(**_skip(generator, shape), dtype=dtype, name=name)


def _uniform(generator: tf.random.Generator, shape: Any, dtype: Any, name: str | None) -> Any:
    return tf.raw_ops.StatelessRandomUniformV2(**_skip(generator, shape), dtype=dtype, name=name)


def _uniform_int(
    generator: tf.random.Generator, shape: Any, minval: Any, maxval: Any, name: str | None
) -> Any:
    return tf.raw_ops.StatelessRandomUniformIntV2(
        **_skip(generator, shape), minval=minval, maxval=maxval, name=name
    )


def _gamma(generator: tf.random.Generator, shape: Any, alpha: Any, name: str | None) -> Any:
    alpha = tf.convert_to_tensor(alpha)
    shape = tf.concat([shape, tf.shape(alpha, out_type=tf.as_dtype(shape.dtype))], 0)
    return tf.raw_ops.StatelessRandomGammaV3(**_skip(generator, shape), alpha=alpha, name=name)


#: What replaces an op, by the name of the function that adds it. The others have no form that begins at a counter.
STATELESS_OPS: Mapping[str, Callable[..., Any]] = {
    "random_gamma": _gamma,
    "random_standard_normal": _normal,
    "random_uniform": _uniform,
    "random_uniform_int": _uniform_int,
    "truncated_normal": _truncated_normal,
}
