"""Expressions over the metrics of a trial, such as ``val_loss - ema(loss, .9)``.

An expression is written as in Python. Only numbers, names of metrics, operators and the functions listed here are
accepted, and the accepted tree is evaluated here: nothing of it is ever passed to Python's `eval`. Each part is a curve
or a number. Two curves meet at the batches that both have, so nothing is interpolated.
"""

from __future__ import annotations

import ast
import difflib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from det_keras.master.errors import InvalidArgumentError
from det_keras.master.reports.points import Floats
from det_keras.master.reports.series import Series
from det_keras.master.reports.thinning import Indices, smooth
from det_keras.protocol.metrics import TRAINING, VALIDATION

__all__ = ["FUNCTIONS", "Expression", "Name", "check_names", "evaluate", "metric_of", "parse"]

#: Characters of an expression; names of metrics may be long.
MOST_CHARACTERS = 500
#: Parts within parts: more is no formula that a person wrote.
MOST_DEPTH = 40

#: The group and the name of a metric.
Name = tuple[str, str]
_Value = Series | float  # of a part of an expression
_OPERATORS: Mapping[type[ast.AST], np.ufunc] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
    ast.USub: np.negative,
    ast.UAdd: np.positive,
}
_UNARY: Mapping[str, np.ufunc] = {
    "abs": np.absolute,
    "exp": np.exp,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "sqrt": np.sqrt,
}
_PAIRWISE: Mapping[str, np.ufunc] = {"max": np.maximum, "min": np.minimum}
_EMA = "ema"
#: What can be called.
FUNCTIONS = (*_UNARY, *_PAIRWISE, _EMA)


@dataclass(frozen=True)
class Expression:
    """An expression that was read.

    Attributes:
        text: as the user wrote it.
        tree: its accepted parts.
        names: the names of metrics in it, as written, each once.
    """

    text: str
    tree: ast.expr
    names: tuple[str, ...]


def parse(text: str) -> Expression:
    """Read an expression.

    Args:
        text: such as ``val_loss - loss``. A metric whose name is no Python name is written in quotation marks, such as
            ``"opt/norm"``. ``training.loss`` and ``"training.loss"`` are the metric of one group.

    Raises:
        InvalidArgumentError: it is no expression, is too long or too deep, or has parts that are not accepted.
    """
    if len(text) > MOST_CHARACTERS:
        raise InvalidArgumentError(
            f"An expression may have {MOST_CHARACTERS} characters, received {len(text)}."
        )
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    # The parser of Python also gives up on deep nesting, and on null bytes in some versions.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InvalidArgumentError(
            f"{text!r} is no expression. Example: `val_loss - ema(loss, 0.9)`."
        ) from None
    names: dict[str, None] = {}
    _check(tree, text, names, 0)
    if not names:
        raise InvalidArgumentError(f"{text!r} has no metric. Example: `val_loss - loss`.")
    return Expression(text, tree, tuple(names))


def evaluate(expression: Expression, named: Mapping[str, Series]) -> Series:
    """Return the curve of an expression of one trial, at the exact points of its metrics.

    Values that are not defined, such as the logarithm of a negative number, are NaN.

    Args:
        expression: from `parse`.
        named: the whole curve of each of its names, batches ascending.
    """
    curves = {name: _last_of_each_batch(series) for name, series in named.items()}
    with np.errstate(all="ignore"):
        value = _evaluated(expression.tree, curves)
    # There is a metric in it, so it is no number.
    assert isinstance(value, Series)
    return value


def metric_of(text: str, known: Collection[Name]) -> Name | None:
    """Return the metric that a name means, None if there is none: its own name, or that of its group and a dot before.

    As in the filter of runs, a validation counts before a training metric of the same name.
    """
    found = [name for name in known if text in (name[1], ".".join(name))]
    return min(found, key=lambda name: (name[0] != VALIDATION, name[0] != TRAINING, name), default=None)


def check_names(expression: Expression, known: Collection[Name]) -> None:
    """Refuse a name that means no metric.

    Raises:
        InvalidArgumentError: there is such a name; the error has the nearest known one.
    """
    for text in expression.names:
        if metric_of(text, known) is None:
            forms = sorted({form for group, name in known for form in (name, f"{group}.{name}")})
            near = difflib.get_close_matches(text, forms, n=1, cutoff=0.0)
            hint = f"Did you mean `{near[0]}`?" if near else "No metric was reported yet."
            raise InvalidArgumentError(f"There is no metric {text!r}. {hint}")


def _check(node: ast.AST, text: str, names: dict[str, None], depth: int) -> None:
    """Collect the names of a part, and refuse a part that is not accepted."""
    if depth > MOST_DEPTH:
        raise InvalidArgumentError(f"The parts of an expression may be nested {MOST_DEPTH} deep.")
    name = _name_of(node)
    if name is not None:
        names[name] = None
        return
    if _number_of(node) is not None:
        return
    if isinstance(node, ast.BinOp | ast.UnaryOp) and type(node.op) in _OPERATORS:
        parts = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.operand]
    elif isinstance(node, ast.Call):
        parts = _arguments(node, text)
    else:
        part = ast.get_source_segment(text.strip(), node) or text
        raise InvalidArgumentError(
            f"{part!r} is not accepted in an expression. Use numbers, metrics, + - * / ** and {', '.join(FUNCTIONS)}."
        )
    for one in parts:
        _check(one, text, names, depth + 1)


def _arguments(call: ast.Call, text: str) -> list[ast.expr]:
    """Return the arguments that are values; refuse a call that is not accepted."""
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    if name not in FUNCTIONS:
        part = ast.get_source_segment(text.strip(), call.func) or text
        raise InvalidArgumentError(f"There is no function {part!r}. Known are {', '.join(FUNCTIONS)}.")
    example = {_EMA: "ema(loss, 0.9)"}.get(name, f"{name}(loss)" if name in _UNARY else f"{name}(loss, 0.1)")
    count = len(call.args)
    fits = count == 1 if name in _UNARY else count == 2 if name == _EMA else count >= 2
    if not fits or call.keywords or any(isinstance(one, ast.Starred) for one in call.args):
        raise InvalidArgumentError(f"`{name}` is called as in `{example}`.")
    if name != _EMA:
        return call.args
    weight = _number_of(call.args[1])
    if weight is None or not 0 <= weight < 1:
        raise InvalidArgumentError(
            "The weight of `ema` is a number from 0 to below 1, such as `ema(loss, 0.9)`."
        )
    return call.args[:1]


def _number_of(node: ast.AST) -> float | None:
    if (
        not isinstance(node, ast.Constant)
        or not isinstance(node.value, int | float)
        or isinstance(node.value, bool)
    ):
        return None
    try:
        return float(node.value)
    except OverflowError:
        return math.inf


def _name_of(node: ast.AST) -> str | None:
    """Return the metric that a part names: ``loss``, ``training.loss`` or ``"opt/norm"``."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        group = _name_of(node.value) if not isinstance(node.value, ast.Constant) else None
        return None if group is None else f"{group}.{node.attr}"
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _evaluated(node: ast.expr, named: Mapping[str, Series]) -> _Value:
    name = _name_of(node)
    if name is not None:
        return named[name]
    if isinstance(node, ast.BinOp):
        return _joined(_OPERATORS[type(node.op)], _evaluated(node.left, named), _evaluated(node.right, named))
    if isinstance(node, ast.UnaryOp):
        return _applied(_OPERATORS[type(node.op)], _evaluated(node.operand, named))
    if isinstance(node, ast.Call):
        assert isinstance(node.func, ast.Name)
        return _called(node.func.id, [_evaluated(one, named) for one in node.args])
    number = _number_of(node)
    assert number is not None
    return number


def _called(name: str, values: Sequence[_Value]) -> _Value:
    first, *others = values
    if name in _UNARY:
        return _applied(_UNARY[name], first)
    if name == _EMA:
        weight = others[0]
        assert isinstance(weight, float)
        # The average of a number is the number.
        return _applied(lambda array: smooth(array, weight), first) if isinstance(first, Series) else first
    for other in others:
        first = _joined(_PAIRWISE[name], first, other)
    return first


def _applied(function: Callable[[Floats], Floats], value: _Value) -> _Value:
    if isinstance(value, Series):
        return replace(value, values=function(value.values))
    return float(function(np.float64(value)))  # type: ignore[arg-type] # a scalar in, a scalar out


def _joined(function: np.ufunc, left: _Value, right: _Value) -> _Value:
    """Apply a function to two values; two curves at the batches that both have."""
    if isinstance(left, Series) and isinstance(right, Series):
        batches, at_left, at_right = np.intersect1d(
            left.batches, right.batches, assume_unique=True, return_indices=True
        )
        return replace(
            left,
            batches=batches,
            epochs=_epochs(left, right, at_left, at_right),
            # What was reported later makes the value complete.
            seconds=np.maximum(left.seconds[at_left], right.seconds[at_right]),
            values=function(left.values[at_left], right.values[at_right]),
            total=len(batches),
        )
    if isinstance(left, Series):
        return replace(left, values=function(left.values, right))
    if isinstance(right, Series):
        return replace(right, values=function(left, right.values))
    return float(function(np.float64(left), np.float64(right)))


def _epochs(left: Series, right: Series, at_left: Indices, at_right: Indices) -> Floats | None:
    """Return the epochs of the joined points; those of one curve where the other has none."""
    first = None if left.epochs is None else left.epochs[at_left]
    second = None if right.epochs is None else right.epochs[at_right]
    if first is None or second is None:
        return second if first is None else first
    return np.where(np.isnan(first), second, first)


def _last_of_each_batch(series: Series) -> Series:
    """Return a curve with the last of several reports at one batch."""
    is_last = np.append(series.batches[1:] != series.batches[:-1], True)
    if is_last.all():
        return series
    return replace(
        series,
        batches=series.batches[is_last],
        epochs=None if series.epochs is None else series.epochs[is_last],
        seconds=series.seconds[is_last],
        values=series.values[is_last],
        total=int(is_last.sum()),
    )
