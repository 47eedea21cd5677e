"""`det.experimental.keras.init`: a script that submits itself, and trains when the master runs it."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from det_keras.cluster_info import get_cluster_info
from det_keras.errors import DetError
from det_keras.keras.context import script_of
from det_keras.keras.generations.trial import length_as_epochs
from det_keras.keras.generations.trial_context import TFKerasTrialContext
from det_keras.keras.init import init as init_context
from det_keras.scratch import Scratch


class NativeContext(TFKerasTrialContext):
    """The context of a self-submitting script: a TFKerasTrial context that manages `model.fit` of a wrapped model."""

    def wrap_model(self, model: Any) -> Any:
        """Return the model with its `fit` replaced by `context.fit`, with the length of the config.

        Raises:
            TypeError: `model` is not a Keras model.
        """
        super().wrap_model(model)
        plain, is_running = model.fit, False

        def fit(*args: Any, **options: Any) -> Any:
            nonlocal is_running
            if is_running:
                # `context.fit` trains with the model's own.
                return plain(*args, **options)
            is_running = True
            try:
                return self._fit(model, inspect.signature(plain).bind(*args, **options).arguments)
            finally:
                is_running = False

        model.fit = fit
        return model

    def _fit(self, model: Any, options: dict[str, Any]) -> Any:
        context = self.keras_context
        context.wrap_optimizer(model.optimizer)
        x = options.get("x")
        if not isinstance(x, keras.utils.PyDataset | tf.data.Dataset):
            options["batch_size"] = self.get_per_slot_batch_size()
        names = [name for name in ("x", "y", "sample_weight") if options.get(name) is not None]
        options |= zip(names, _as_tuple(self._wrapped(*(options[name] for name in names))), strict=True)
        validation = options.get("validation_data")
        if validation is not None:
            wrapped = self._wrapped(*_as_tuple(validation))
            options["validation_data"] = wrapped
        records = script_of(context).settings.records_per_epoch
        if records:
            script_of(context).configure(epochs_wrap_around=True)
            options["steps_per_epoch"] = max(records // self.get_global_batch_size(), 1)
        length = length_as_epochs(context)
        if length is not None:
            options["epochs"] = length
        return context.fit(model, **options)

    def _wrapped(self, *data: Any) -> Any:
        if isinstance(data[0], tf.data.Dataset):
            # `wrap_dataset` shards the data: the script calls it at the right stage of the pipeline.
            return data[0]
        if isinstance(data[0], keras.utils.PyDataset):
            self.prepare_sequence(data[0])
        return self.keras_context.wrap_data(*data)


def init(
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    local: bool = False,
    test: bool = False,
    context_dir: str | os.PathLike[str] = "",
    command: Sequence[str] | None = None,
    master_url: str | None = None,
) -> NativeContext:
    """Return a context to train with; outside a trial submit the script as an experiment, and exit.

    Args:
        config: the experiment's config: a mapping or the path of a YAML file; it needs no entrypoint.
        local: train in this process, without a master.
        test: train one batch in this process to test the script; nothing is submitted.
        context_dir: the directory to submit; by default the script's directory.
        command: the command of the experiment, such as ``["train.py", "--fast"]``; by default this script with its
            arguments.
        master_url: address of the master; by default the same as for the command line.

    Raises:
        SystemExit: the script was submitted; it has the exit code of the submission.
        DetError: the config is invalid.
        ValueError: the config lacks the hyperparameter ``global_batch_size``.
    """
    if get_cluster_info() is not None:
        return NativeContext(init_context())
    if local or test:
        context = init_context(config=config)
        if test:
            script_of(context).configure(batch_limit=1)
        return NativeContext(context)
    raise SystemExit(_submit(config, context_dir, command, master_url))


def _submit(
    config: Mapping[str, Any] | str | os.PathLike[str] | None,
    context_dir: str | os.PathLike[str],
    command: Sequence[str] | None,
    master_url: str | None,
) -> int:
    script = Path(sys.argv[0]).absolute()
    folder = Path(context_dir).absolute() if os.fspath(context_dir) else script.parent
    content = _read(config)
    words = list(command) if command is not None else [_inside(script, folder), *sys.argv[1:]]
    entrypoint = words if words and words[0].startswith("python") else ["python3", *words]
    resources = content.get("resources") or {}
    if max(resources.get("slots_per_trial") or 1, resources.get("slots") or 1) > 1:
        entrypoint = ["python3", "-m", "det_keras.launch.distributed", "--", *entrypoint]
    argv = [sys.executable, "-m", "det_keras.cli"]
    if master_url is not None:
        argv += ["--master", master_url]
    with Scratch("submit") as drafts:
        path = Path(drafts) / "experiment.yaml"
        # JSON is YAML, and needs no library here.
        path.write_text(json.dumps({**content, "entrypoint": shlex.join(entrypoint)}), encoding="utf-8")
        return subprocess.run([*argv, "experiment", "create", str(path), str(folder)], check=False).returncode


def _as_tuple(data: Any) -> tuple[Any, ...]:
    return tuple(data) if isinstance(data, tuple | list) else (data,)


def _inside(script: Path, folder: Path) -> str:
    if not script.is_relative_to(folder):
        raise DetError(
            f"The script {script} is not in the context directory {folder}. Pass `context_dir` or `command`."
        )
    return script.relative_to(folder).as_posix()


def _read(config: Mapping[str, Any] | str | os.PathLike[str] | None) -> dict[str, Any]:
    if config is None or isinstance(config, Mapping):
        return dict(config or {})
    from det_keras.config import load_yaml

    try:
        text = Path(config).read_text(encoding="utf-8")
    except OSError as error:
        raise DetError(f"The config file {str(config)!r} cannot be read: {error.strerror}.") from error
    return load_yaml(text, source=str(config))
