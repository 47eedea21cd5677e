"""Hints for scripts that fail because they use Keras 2 API that Keras 3 does not have.

The error of Keras names the unknown API but not its replacement. The traceback is printed unchanged, followed by one
hint with the line of the script.
"""

from __future__ import annotations

import linecache
import re
import site
import sysconfig
from pathlib import Path
from types import TracebackType

_LOADING = (
    "Keras 3 asks the dataset itself: `super().__init__(workers=..., use_multiprocessing=..., max_queue_size=...)` in "
    "your `keras.utils.PyDataset`."
)
_DECAY = (
    "Use a schedule: `keras.optimizers.schedules.InverseTimeDecay(learning_rate, "
    "decay_steps=1, decay_rate=decay)`."
)

# A pattern for the error's type and text, and the replacement of the API. The first match is used.
_HABITS: tuple[tuple[str, str], ...] = (
    (
        r"keras\.optimizers\.legacy",
        "Keras 3 has no `optimizers.legacy`. Use the class of the same name in `keras.optimizers`.",
    ),
    (r"Argument\(s\) not recognized: \{.*'lr'", "`lr` is called `learning_rate` in Keras 3."),
    (r"Argument\(s\) not recognized: \{.*'decay'", f"Optimizers have no `decay` in Keras 3. {_DECAY}"),
    (r"'\w+' object has no attribute 'lr'", "`optimizer.lr` is called `optimizer.learning_rate` in Keras 3."),
    (
        r"unexpected keyword argument '(workers|use_multiprocessing|max_queue_size)'",
        "`fit`, `evaluate` and `predict` have no `\\1` in Keras 3. " + _LOADING,
    ),
    (r"no attribute '(fit|evaluate|predict)_generator'", "`\\1_generator` is called `\\1` in Keras 3."),
    (
        r"no attribute 'predict_(classes|proba)'",
        "Keras 3 has no `predict_\\1`. Use `predict(x)`, and `.argmax(axis=-1)` of it for classes.",
    ),
    (r"KeyError: '(val_)?acc'", "The history has `\\1accuracy` when the metric is given as `accuracy`."),
    (
        r"monitor=(val_)?acc,",
        'The metric is called `\\1accuracy` when it is given as `accuracy`. Write `monitor="\\1accuracy"`.',
    ),
    (
        r"filename must end in `\.weights\.h5`",
        "Keras 3 writes weights to files that end with `.weights.h5`.",
    ),
    (
        r"Invalid filepath extension for saving|must end in `\.keras`",
        "Keras 3 saves models to files that end with `.keras`; `model.export(folder)` writes a SavedModel.",
    ),
    (
        r"File format not supported",
        "Keras 3 reads `.keras` and `.h5` files. Load an old SavedModel with `keras.layers.TFSMLayer(folder)`.",
    ),
    (r"'np_utils'", "`np_utils.to_categorical` is `keras.utils.to_categorical` in Keras 3."),
    (
        r"cannot import name 'ImageDataGenerator'",
        "Import it with `from tensorflow.keras.preprocessing.image import ImageDataGenerator`, or use "
        "`keras.utils.image_dataset_from_directory` and preprocessing layers.",
    ),
    (r"No module named 'keras\.layers\.\w+'", "Import layers with `from keras.layers import ...`."),
    (
        r"No module named 'keras\.wrappers",
        "Use `keras.wrappers.SKLearnClassifier` and its siblings, or the package scikeras.",
    ),
    (
        r"module 'keras\.layers' has no attribute 'experimental'",
        "Those layers are in `keras.layers` in Keras 3.",
    ),
    (
        r"module 'keras\.backend' has no attribute '(get|set)_value'",
        "Read a variable with `float(variable)`, and set it with `variable.assign(value)`.",
    ),
    (
        r"module 'keras\.backend' has no attribute '(get_session|set_session)'",
        "TensorFlow 2 has no sessions: leave the line out.",
    ),
    (
        r"module 'keras\.backend' has no attribute '(\w+)'",
        "Look for `\\1` in `keras.ops`, where Keras 3 has its operations.",
    ),
    (
        r"compile\(\) got an unexpected keyword argument '(sample_weight_mode|experimental_run_tf_function)'",
        "`compile` has no `\\1` in Keras 3: leave it out.",
    ),
    (
        r"ModelCheckpoint\.__init__\(\) got an unexpected keyword argument 'period'",
        'Keras 3\'s `ModelCheckpoint` has `save_freq`, in batches or "epoch", instead of `period`.',
    ),
    (r"Unrecognized keyword arguments passed to BatchNormalization: .*'fused'", "Leave `fused` out."),
    (r"no attribute 'reset_states'", "`reset_states` of metrics is called `reset_state` in Keras 3."),
)


def hint_for(error: BaseException) -> str | None:
    """Return the replacement of the Keras 2 API that caused `error`, None if the cause is not known.

    Args:
        error: the exception, with its traceback.

    Returns:
        The file, the number and the text of the line in the user's code, followed by one or two sentences.
    """
    said = f"{type(error).__name__}: {error}"
    for pattern, advice in _HABITS:
        found = re.search(pattern, said, re.DOTALL)
        if found is not None:
            return f"{_place(error.__traceback__)}{_filled(advice, found)}"
    return None


def _filled(advice: str, found: re.Match[str]) -> str:
    """Return `advice` with the groups of `found`, which may be empty, in their places."""
    return re.sub(r"\\(\d)", lambda place: found.group(int(place[1])) or "", advice)


def _place(trace: TracebackType | None) -> str:
    """Return the last line of the user's own code in a traceback, as text before a sentence."""
    place = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if _is_users(file):
            line = linecache.getline(file, trace.tb_lineno).strip()
            place = f"{file}, line {trace.tb_lineno}: {line}\n  "
        trace = trace.tb_next
    return place


def _is_users(file: str) -> bool:
    if file.startswith("<"):
        return False
    path = Path(file).resolve()
    own = Path(__file__).resolve().parents[1]
    foreign: list[str | Path] = [*site.getsitepackages(), sysconfig.get_paths()["stdlib"], own]
    return not any(path.is_relative_to(Path(folder).resolve()) for folder in foreign)
