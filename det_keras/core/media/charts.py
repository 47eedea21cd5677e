"""Histograms and confusion matrices, counted here and drawn by the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from det_keras.core.media.content import Content, json_content

MOST_BINS = 1000
MOST_CLASSES = 200

# The width of a range between greater values is no longer a number.
_GREATEST = 1e300


def histogram_content(values: Any, bins: int = 64) -> Content:
    """Return a histogram.

    Args:
        values: numbers of any shape and dtype. NaN and infinities are counted separately.
        bins: number of bins of equal width between the lowest and the highest value.

    Raises:
        ValueError: `values` is empty or has no numbers, or `bins` is out of range.
    """
    if isinstance(bins, bool) or not isinstance(bins, int | np.integer) or not 1 <= bins <= MOST_BINS:
        raise ValueError(f"`bins` must be a whole number from 1 to {MOST_BINS}. Received: {bins!r}.")
    try:
        numbers = np.asarray(values).astype(np.float64).ravel()
    except (TypeError, ValueError) as error:
        raise ValueError(f"`values` must be numbers: {error}") from error
    if numbers.size == 0:
        raise ValueError("`values` is empty: there is nothing to count.")
    finite = numbers[np.abs(numbers) < _GREATEST]
    counts, edges = _count(finite, int(bins))
    summary = {"total": numbers.size, "not_finite": numbers.size - finite.size}
    if finite.size:
        summary.update(min=finite.min(), max=finite.max(), mean=finite.mean(), std=finite.std())
    return json_content("histogram", {"counts": counts, "edges": edges, **summary})


def confusion_matrix_content(y_true: Any, y_pred: Any, labels: Sequence[Any] | None = None) -> Content:
    """Return a confusion matrix.

    Args:
        y_true: the true classes, of shape (samples,): whole numbers or texts; or of shape (samples, classes), one-hot.
        y_pred: the predicted classes, likewise; or probabilities, of which the highest counts.
        labels: of whole numbers, the names of the classes 0, 1, ...; of texts, the classes in this order.

    Raises:
        ValueError: the arguments do not fit each other.
    """
    true, predicted = _classes(y_true, "y_true"), _classes(y_pred, "y_pred")
    if len(true) != len(predicted) or not len(true):
        raise ValueError(
            "`y_true` and `y_pred` must have the same number of samples, at least 1. "
            f"Received: {len(true)} and {len(predicted)}."
        )
    if (true.dtype.kind == "U") != (predicted.dtype.kind == "U"):
        raise ValueError("`y_true` and `y_pred` must both be numbers or both be texts.")
    classes, names = _named_classes(true, predicted, labels)
    if len(classes) > MOST_CLASSES:
        raise ValueError(f"A confusion matrix has at most {MOST_CLASSES} classes. Received {len(classes)}.")
    places = {value: place for place, value in enumerate(classes)}
    unknown = [
        value for value in np.unique(np.concatenate([true, predicted])).tolist() if value not in places
    ]
    if unknown:
        raise ValueError(f"Class {unknown[0]!r} is not among the {len(classes)} classes of `labels`.")
    counts = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(
        counts,
        ([places[value] for value in true.tolist()], [places[value] for value in predicted.tolist()]),
        1,
    )
    return json_content("confusion_matrix", {"labels": names, "counts": counts})


def _count(numbers: np.ndarray[Any, Any], bins: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    while True:
        try:
            counts, edges = np.histogram(numbers, bins=bins)
        except ValueError:
            # The range is too narrow for so many bins of float64.
            bins //= 2
            if bins == 0:
                raise
        else:
            return counts, edges


def _classes(values: Any, what: str) -> np.ndarray[Any, Any]:
    """Return classes as an array of whole numbers or of texts, of shape (samples,)."""
    array = np.asarray(values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim == 2 and array.dtype.kind in "biuf":
        array = array.argmax(axis=1)
    if array.dtype == np.object_:
        array = np.asarray([str(value) for value in array.ravel()]).reshape(array.shape)
    if array.ndim != 1 or array.dtype.kind not in "biufU":
        raise ValueError(
            f"`{what}` must have the shape (samples,) or (samples, classes), of numbers or texts. Received the shape "
            f"{array.shape} and the dtype {array.dtype}."
        )
    if array.dtype.kind == "U":
        return array
    if array.dtype.kind == "f" and not (np.isfinite(array).all() and (array == np.rint(array)).all()):
        raise ValueError(
            f"`{what}` must be classes, such as `probabilities > 0.5`. Received numbers that are not whole."
        )
    return array.astype(np.int64)


def _named_classes(
    true: np.ndarray[Any, Any], predicted: np.ndarray[Any, Any], labels: Sequence[Any] | None
) -> tuple[list[Any], list[str]]:
    """Return the classes in the order of the matrix, and their names."""
    if labels is None:
        classes = np.unique(np.concatenate([true, predicted])).tolist()
        return classes, [str(value) for value in classes]
    given = np.asarray(labels).tolist()
    names = [str(label) for label in given] if isinstance(given, list) else []
    if not names or len(set(names)) < len(names):
        raise ValueError(f"`labels` must be different names, at least 1. Received: {labels!r}.")
    is_text = true.dtype.kind == "U"
    if is_text or all(isinstance(label, int) for label in given):
        return (names if is_text else given), names
    return list(range(len(names))), names
