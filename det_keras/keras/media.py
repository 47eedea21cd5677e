"""The calls of a context that log media: images, figures, tables, histograms, confusion matrices, texts and files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from det_keras.core.media.charts import confusion_matrix_content, histogram_content
from det_keras.core.media.content import Content, figure_content, file_content, text_content
from det_keras.core.media.images import image_content
from det_keras.core.media.tables import table_content
from det_keras.keras.script import Script
from det_keras.protocol.media import LONGEST_CAPTION, LONGEST_NAME


class MediaLog:
    """Logs media of a training, which the pages of a trial show by name and step.

    The chief logs, and calls on other ranks have no effect. An item is stored in the background, beside the
    checkpoints; in a local run, in the run directory. An item of the same kind, name and step replaces the earlier one.
    An item may have 10 MB, a trial 10,000 items of 1 GB in all: what exceeds this is dropped with a warning, and so is
    what the storage refuses.
    """

    _script: Script

    def log_image(self, name: str, value: Any, step: int | None = None, caption: str | None = None) -> None:
        """Log an image, or a batch of images as a grid.

        Args:
            name: name of the image, 1 to 500 characters; images of one name are shown over their steps.
            value: an array of uint8 (0 to 255), or of floats (0 to 1), of shape (height, width), (height, width,
                channels) or (images, height, width, channels), with 1, 3 or 4 channels; of a batch, the first 64
                images. Or an image of PIL, or the path of a PNG, JPEG, GIF or WebP.
            step: a whole number from 0; the number of batches trained so far by default.
            caption: text that is shown with the image, at most 2,000 characters; none by default.

        Raises:
            ValueError: an argument is invalid: for example, an array has another shape or dtype, its values lie
                outside of 0 to 1, or a file is an SVG.
            DetError: the context is closed.

        Example:
            ```pycon
            >>> digits = np.zeros((16, 8, 8, 1), "float32")  # 16 images of 8 by 8 pixels
            >>> context.log_image("digits", digits)
            >>> context.log_image("first", digits[0], step=120, caption="a zero?")
            ```
        """
        self._log(name, step, lambda: image_content(value, _checked_caption(caption)))

    def log_figure(self, name: str, figure: Any, step: int | None = None) -> None:
        """Log a figure of matplotlib, which is stored as PNG, or of plotly, which the page draws.

        Args:
            name: name of the figure, 1 to 500 characters.
            figure: a figure of matplotlib, such as `plt.gcf()`, or a figure of plotly.
            step: a whole number from 0; the number of batches trained so far by default.

        Raises:
            ValueError: an argument is invalid.
            DetError: the context is closed.

        Example:
            ```pycon
            >>> import plotly.graph_objects as go
            >>> context.log_figure("calibration", go.Figure(go.Scatter(x=[0, 0.5, 1], y=[0, 0.4, 1])))
            ```
        """
        self._log(name, step, lambda: figure_content(figure))

    def log_table(
        self, name: str, value: Any, step: int | None = None, columns: Sequence[str] | None = None
    ) -> None:
        """Log a table.

        The first 10,000 rows and the first 50 columns are stored; a warning says if there are more.

        Args:
            name: name of the table, 1 to 500 characters.
            value: a list of dicts, one for each row; a dict of columns of equal lengths; a pandas.DataFrame, of which
                the index is not stored; or an array of shape (rows, columns) and any dtype.
            step: a whole number from 0; the number of batches trained so far by default.
            columns: of an array, the titles of its columns, 0, 1, ... by default; otherwise the columns to store, in
                this order, all by default.

        Raises:
            ValueError: an argument is invalid.
            DetError: the context is closed.

        Example:
            ```pycon
            >>> context.log_table("mistakes", [{"id": 17, "true": "cat", "predicted": "dog"}])
            >>> context.log_table("scores", np.ones((3, 2)), columns=["precision", "recall"])
            ```
        """
        self._log(name, step, lambda: table_content(name, value, columns))

    def log_histogram(self, name: str, values: Any, step: int | None = None, bins: int = 64) -> None:
        """Log how often values occur, such as those of a layer's weights.

        Args:
            name: name of the histogram, 1 to 500 characters.
            values: numbers of any shape and dtype, at least one. NaN and infinities are only counted.
            step: a whole number from 0; the number of batches trained so far by default.
            bins: number of bins of equal width between the lowest and the highest value, 1 to 1000; 64 by default.

        Raises:
            ValueError: an argument is invalid.
            DetError: the context is closed.

        Example:
            ```pycon
            >>> context.log_histogram("weights", np.random.default_rng(1).normal(size=(64, 10)))
            ```
        """
        self._log(name, step, lambda: histogram_content(values, bins))

    def log_text(self, name: str, text: str, step: int | None = None) -> None:
        """Log a text, which is shown as plain text.

        Args:
            name: name of the text, 1 to 500 characters.
            text: the text, without any markup.
            step: a whole number from 0; the number of batches trained so far by default.

        Raises:
            ValueError: an argument is invalid.
            DetError: the context is closed.

        Example:
            ```pycon
            >>> context.log_text("sample", "To be, or not to be", step=100)
            ```
        """
        self._log(name, step, lambda: text_content(text))

    def log_file(self, name: str, path: str | os.PathLike[str], step: int | None = None) -> None:
        """Log a file of any kind, which the page offers as a download.

        Args:
            name: name of the item, 1 to 500 characters.
            path: path of the file, which is read before this returns.
            step: a whole number from 0; the number of batches trained so far by default.

        Raises:
            ValueError: an argument is invalid, or there is no such file.
            DetError: the context is closed.

        Example:
            ```pycon
            >>> from pathlib import Path
            >>> _ = Path("vocabulary.txt").write_text("the of and")
            >>> context.log_file("vocabulary", "vocabulary.txt")
            ```
        """
        self._log(name, step, lambda: file_content(path))

    def log_confusion_matrix(
        self,
        name: str,
        y_true: Any,
        y_pred: Any,
        step: int | None = None,
        labels: Sequence[Any] | None = None,
    ) -> None:
        """Log how often each true class was predicted as each class.

        Args:
            name: name of the matrix, 1 to 500 characters.
            y_true: the true classes, of shape (samples,): whole numbers or texts; or one-hot, of shape (samples,
                classes).
            y_pred: the predicted classes, likewise; or probabilities of shape (samples, classes), of which the highest
                counts.
            step: a whole number from 0; the number of batches trained so far by default.
            labels: names of the classes 0, 1, ...; if the classes are texts, all classes in the order of the matrix.
                At most 200. By default the classes that occur, sorted.

        Raises:
            ValueError: an argument is invalid, or a class has no label.
            DetError: the context is closed.

        Example:
            ```pycon
            >>> context.log_confusion_matrix("validation", [0, 1, 1], [0, 1, 0], labels=["cat", "dog"])
            ```
        """
        self._log(name, step, lambda: confusion_matrix_content(y_true, y_pred, labels))

    def _log(self, name: str, step: int | None, make: Callable[[], Content]) -> None:
        script = self._script
        script.check_open("log_...")
        if not script.core.distributed.is_chief:
            return
        _check_name(name)
        at = script.trained_batches if step is None else _checked_step(step)
        content = make()
        if not script.is_repeating:
            script.core.media.put(name, at, content)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not _is_unicode(name):
        raise ValueError(f"`name` must be a text of 1 to {LONGEST_NAME} characters. Received: {name!r:.600}.")


def _checked_caption(caption: object) -> str:
    if caption is None:
        return ""
    if not isinstance(caption, str) or len(caption) > LONGEST_CAPTION or not _is_unicode(caption):
        raise ValueError(
            f"`caption` must be a text of at most {LONGEST_CAPTION} characters. Received: {caption!r:.200}."
        )
    return caption


def _checked_step(step: object) -> int:
    if isinstance(step, bool) or not isinstance(step, int | np.integer) or not 0 <= step < 1 << 63:
        raise ValueError(f"`step` must be a whole number from 0. Received: {step!r}.")
    return int(step)


def _is_unicode(text: str) -> bool:
    # Half of a surrogate pair can neither be stored nor shown.
    return not any("\ud800" <= character <= "\udfff" for character in text)
