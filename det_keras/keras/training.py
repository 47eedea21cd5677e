"""`context.training`: what the script may know of its training run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from det_keras.config import Length

__all__ = ["HParams", "TrainingInfo"]


class HParams(dict[str, Any]):
    """Hyperparameter values; a missing name is answered with those that there are."""

    def __missing__(self, name: str) -> Any:
        known = ", ".join(sorted(map(repr, self))) or "none"
        raise KeyError(
            f"There is no hyperparameter {name!r}; there are: {known}. Add it to `hyperparameters` in the config."
        )

    @classmethod
    def nested(cls, values: dict[str, Any]) -> HParams:
        """Return `values` with every nested dict turned as well."""
        return cls(
            {name: cls.nested(value) if isinstance(value, dict) else value for name, value in values.items()}
        )


# Scripts write their hyperparameters down, and PyYAML's safe dumper knows a dict by its exact type.
for _dumper in ("SafeDumper", "Dumper", "CSafeDumper", "CDumper"):
    if hasattr(yaml, _dumper):
        getattr(yaml, _dumper).add_representer(HParams, yaml.representer.SafeRepresenter.represent_dict)


@dataclass(frozen=True)
class TrainingInfo:
    """What a script may ask of its training run.

    Attributes:
        hparams: values of the hyperparameters, nested as in the config.
        seed: seed of everything random, 0 to 2**32 - 1.
        experiment_config: the full config, {} without one.
        trial_id: None alone.
        experiment_id: None alone.
        latest_checkpoint: UUID of the checkpoint that the process starts from, or None.
        max_length: the config's length of a trial, or None.
    """

    hparams: HParams
    seed: int
    experiment_config: dict[str, Any] = field(default_factory=dict)
    trial_id: int | None = None
    experiment_id: int | None = None
    latest_checkpoint: str | None = None
    max_length: Length | None = None
