"""The objects whose state a loop written by hand keeps in its checkpoints."""

from __future__ import annotations

import base64
import functools
import logging
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from det_keras.errors import ModelMismatchError
from det_keras.keras.checkpoint.random_state import layer_generators
from det_keras.keras.checkpoint.reach import STREAMS, Stream
from det_keras.keras.checkpoint.variables import LooseVariable, VariableSet
from det_keras.keras.distributed.replica import moving_statistics, seed_variables
from det_keras.keras.private_api.models import all_layers
from det_keras.keras.private_api.steps import variables_trained_by

logger = logging.getLogger(__name__)

_SUPPORTED = (
    "Keras models, layers, optimizers, metrics and variables, `keras.random.SeedGenerator`, `tf.Variable`, "
    "`tf.random.Generator`, generators of NumPy and Python, objects with `get_state()` and `load_state(state)`, and "
    "lists and dicts of these"
)


def named_objects(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return objects by name, with the items of lists and dicts as ``name.0`` or ``name.key``.

    Raises:
        TypeError: an object has a type whose state is not known.
    """
    found: dict[str, Any] = {}
    for name, value in objects.items():
        if isinstance(value, list | tuple):
            found |= named_objects({f"{name}.{index}": item for index, item in enumerate(value)})
        elif isinstance(value, Mapping):
            found |= named_objects({f"{name}.{key}": item for key, item in value.items()})
        elif _kind(value) is None:
            raise TypeError(f"`track({name}=...)` got a {type(value).__name__}. It takes {_SUPPORTED}.")
        else:
            found[name] = value
    return found


def _kind(value: Any) -> str | None:
    for kind, types in (
        ("layer", keras.Layer),
        ("optimizer", keras.optimizers.Optimizer),
        ("metric", keras.metrics.Metric),
        ("seed", keras.random.SeedGenerator),
        ("variable", keras.Variable | tf.Variable),
        ("generator", tf.random.Generator),
        ("stream", STREAMS),
    ):
        if isinstance(value, types):
            return kind
    return "object" if hasattr(value, "get_state") and hasattr(value, "load_state") else None


class TrackedObjects:
    """The tracked objects of one loop.

    Args:
        objects: the objects by name, as `named_objects` returns them.
        optimizers: wrapped optimizers, which are tracked too.

    Attributes:
        layers: the models and layers by name.
        optimizers: the optimizers by name, with those that tracked models were compiled with.
        metrics: the metrics by name.
        pickled: the random streams of NumPy and Python, and the objects that define their state, by name.
        others: all other objects by name.
    """

    def __init__(self, objects: Mapping[str, Any], optimizers: Iterable[Any] = ()) -> None:
        self._kinds = {name: _kind(value) for name, value in objects.items()}
        self.layers = self._of_kind(objects, "layer")
        self.metrics = self._of_kind(objects, "metric")
        self.optimizers = self._of_kind(objects, "optimizer")
        compiled = {
            f"{name}.optimizer": layer.optimizer
            for name, layer in self.layers.items()
            if isinstance(getattr(layer, "optimizer", None), keras.optimizers.Optimizer)
        }
        wrapped = {f"wrapped.{index}": optimizer for index, optimizer in enumerate(optimizers)}
        for name, optimizer in {**compiled, **wrapped}.items():
            if all(optimizer is not known for known in self.optimizers.values()):
                self.optimizers[name] = optimizer
        self._seeds = self._of_kind(objects, "seed")
        self._variables = {
            name: LooseVariable(name, value) if isinstance(value, tf.Variable) else value
            for name, value in self._of_kind(objects, "variable").items()
        }
        self._generators = self._of_kind(objects, "generator")
        self.pickled = {**self._of_kind(objects, "stream"), **self._of_kind(objects, "object")}
        self.others = {name: value for name, value in objects.items() if name not in self.pickled}

    def _of_kind(self, objects: Mapping[str, Any], kind: str) -> dict[str, Any]:
        return {name: value for name, value in objects.items() if self._kinds[name] == kind}

    def kinds(self) -> dict[str, Any]:
        """Return what each tracked object is, by name, as JSON values."""
        return dict(self._kinds)

    def variables(self) -> VariableSet:
        """Return all variables that exist now; those of models come first."""
        layers = self.layers.values()
        return VariableSet(
            [
                *(("model", layer.variables) for layer in layers),
                *(("optimizer", known.variables) for known in self.optimizers.values() if known.built),
                *(("metrics", layer.metrics_variables) for layer in layers),
                *(("metrics", metric.variables) for metric in self.metrics.values()),
                ("variables", [seed.state for seed in self._seeds.values()]),
                ("variables", self._variables.values()),
            ]
        )

    def trainable_variables(self) -> list[Any]:
        """Return the trainable variables of all models, each once."""
        found = [variable for layer in self.layers.values() for variable in layer.trainable_variables]
        return list({id(variable): variable for variable in found}.values())

    def own_variables(self) -> list[Any]:
        """Return every variable that may differ between workers: all but weights and the state of optimizers."""
        shared = {id(variable) for variable in self.trainable_variables()}
        statistics = {id(variable) for variable in [*self.statistics(), *self.seeds()]}
        return [
            item.variable
            for item in self.variables().tracked
            if item.group != "optimizer"
            and id(item.variable) not in shared
            and (item.group != "model" or id(item.variable) in statistics)
        ]

    def all_metrics(self) -> list[Any]:
        """Return the tracked metrics, and those that the tracked models hold."""
        held = [metric for layer in self.layers.values() for metric in getattr(layer, "metrics", ())]
        return list({id(metric): metric for metric in [*self.metrics.values(), *held]}.values())

    def statistics(self) -> list[Any]:
        """Return the models' floating-point variables besides their weights, such as moving means."""
        found = [variable for layer in self.layers.values() for variable in moving_statistics(layer)]
        return list({id(variable): variable for variable in found}.values())

    def seeds(self) -> list[Any]:
        """Return the states of all seed generators."""
        held = [variable for layer in self.layers.values() for variable in seed_variables(layer)]
        found = [*held, *(seed.state for seed in self._seeds.values())]
        return list({id(variable): variable for variable in found}.values())

    def generators(self) -> list[tf.random.Generator]:
        """Return the tracked `tf.random.Generator`s, and those that the tracked models hold."""
        held = [found for layer in self.layers.values() for found in layer_generators(layer)]
        return list({id(found): found for found in [*self._generators.values(), *held]}.values())

    def generator_states(self) -> list[list[int]]:
        """Return the states of `generators`, as JSON values."""
        return [np.asarray(generator.state).tolist() for generator in self.generators()]

    def assign_generators(self, states: Iterable[Any]) -> None:
        """Restore the states that `generator_states` returned."""
        for generator, state in zip(self.generators(), states, strict=True):
            generator.state.assign(state)

    def draws(self) -> dict[str, Any]:
        """Return the states of everything tracked that draws random numbers, as JSON values."""
        streams = {name: value for name, value in self.pickled.items() if isinstance(value, STREAMS)}
        return {
            "generators": self.generator_states(),
            "seeds": [np.asarray(seed.value).tolist() for seed in self.seeds()],
            "streams": {
                name: base64.b64encode(pickle.dumps(_state(value))).decode()
                for name, value in streams.items()
            },
        }

    def assign_draws(self, state: Mapping[str, Any]) -> None:
        """Restore the states that `draws` returned."""
        self.assign_generators(state["generators"])
        for seed, value in zip(self.seeds(), state["seeds"], strict=True):
            seed.assign(np.array(value, seed.dtype))
        self.load_pickles(
            {name: pickle.loads(base64.b64decode(text)) for name, text in state["streams"].items()}
        )

    def trainable_flags(self) -> list[bool]:
        """Return whether each layer is trainable: a loop may freeze layers in some of its epochs."""
        return [bool(part.trainable) for layer in self.layers.values() for part in all_layers(layer)]

    def assign_trainable(self, flags: Iterable[bool]) -> None:
        """Restore what `trainable_flags` returned."""
        parts = [part for layer in self.layers.values() for part in all_layers(layer)]
        # Outer layers come first, because they set those in them too.
        for part, flag in zip(parts, flags, strict=False):
            if part.trainable != flag:
                part.trainable = flag

    def pickles(self) -> dict[str, Callable[[], bytes]]:
        """Return the pickled states of the other objects, by name: they may change as soon as this returns."""
        return {
            name: functools.partial(bytes, pickle.dumps(_state(value)))
            for name, value in self.pickled.items()
        }

    def load_pickles(self, states: Mapping[str, Any]) -> None:
        """Restore the unpickled states of `pickles`."""
        for name, value in self.pickled.items():
            if name in states and isinstance(value, STREAMS):
                Stream(name, value).write("", states[name])
            elif name in states:
                value.load_state(states[name])

    def build_configs(self) -> dict[str, Any]:
        """Return how each model and optimizer was built, as JSON values, for `build`.

        Raises:
            ValueError: an optimizer trains a variable of a model that is not tracked.
        """
        indices = {id(item.variable): index for index, item in enumerate(self.variables().tracked)}
        configs: dict[str, Any] = {
            name: keras.saving.serialize_keras_object(layer.get_build_config())
            for name, layer in self.layers.items()
        }
        for name, optimizer in self.optimizers.items():
            if not optimizer.built:
                continue
            trained = variables_trained_by(optimizer)
            unknown = [variable.path for variable in trained if id(variable) not in indices]
            if unknown:
                raise ValueError(
                    f"The optimizer `{name}` trains `{unknown[0]}`, which is not tracked and would be lost with the "
                    "process. Pass its model to `context.track(...)` as well."
                )
            configs[name] = [indices[id(variable)] for variable in trained]
        return configs

    def build(self, configs: Mapping[str, Any], saved: Iterable[Mapping[str, Any]]) -> None:
        """Create the variables that the objects had in a checkpoint.

        Args:
            configs: the value that `build_configs` returned.
            saved: the descriptions of the variables in the checkpoint.

        Raises:
            ModelMismatchError: a variable cannot be created, or differs from the one in the checkpoint.
        """
        for name, layer in self.layers.items():
            if not layer.built and configs.get(name):
                # The scope in which its first call would make the variables.
                with keras.name_scope(layer.name):
                    layer.build_from_config(keras.saving.deserialize_keras_object(configs[name]))
        for name, optimizer in self.optimizers.items():
            if optimizer.built or name not in configs:
                continue
            tracked = self.variables().tracked
            if max(configs[name], default=-1) >= len(tracked):
                raise ModelMismatchError(
                    f"The variables that the optimizer `{name}` trained do not exist yet in this process. Call each "
                    "model once, on a batch of any values, before `context.epochs(...)`."
                )
            optimizer.build([tracked[index].variable for index in configs[name]])
        saved, found = list(saved), self.variables()
        if _num_metrics(saved) > _num_metrics(found.describe()):
            raise ModelMismatchError(
                "The checkpoint has states of metrics that make their variables when they are first updated. Update "
                "them once before `context.epochs(...)`: those of a compiled model with "
                "`model.test_on_batch(x[:1], y[:1])`, others with `update_state` and `reset_state`."
            )
        found.check(saved)


def _num_metrics(descriptions: Sequence[Mapping[str, Any]]) -> int:
    return sum(description["group"] == "metrics" for description in descriptions)


def _state(value: Any) -> Any:
    return Stream("", value).values()[""] if isinstance(value, STREAMS) else value.get_state()
