"""`context.training`: information about the training run for the script."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from det_keras.config import Length


class HParams(dict[str, Any]):
    """Hyperparameter values; the error for a missing name lists the existing names."""

    def __missing__(self, name: str) -> Any:
        known = ", ".join(sorted(map(repr, self))) or "none"
        raise KeyError(
            f"There is no hyperparameter {name!r}; there are: {known}. Add it to `hyperparameters` in the config."
        )

    @classmethod
    def nested(cls, values: dict[str, Any]) -> HParams:
        """Return `values` with every nested dict converted to `HParams` as well."""
        return cls(
            {name: cls.nested(value) if isinstance(value, dict) else value for name, value in values.items()}
        )


# Scripts dump their hyperparameters as YAML, and PyYAML's safe dumper represents a dict by its exact type only.
for _dumper in ("SafeDumper", "Dumper", "CSafeDumper", "CDumper"):
    if hasattr(yaml, _dumper):
        getattr(yaml, _dumper).add_representer(HParams, yaml.representer.SafeRepresenter.represent_dict)


@dataclass(frozen=True)
class TrainingInfo:
    """Information about a training run.

    Attributes:
        hparams: values of the hyperparameters, nested as in the config.
        seed: the seed of all random operations, 0 to 2**32 - 1.
        experiment_config: the full config, {} without one.
        trial_id: None in a local run.
        experiment_id: None in a local run.
        latest_checkpoint: UUID of the checkpoint that the process starts from, or None.
        max_length: the length of a trial in the config, or None.
    """

    hparams: HParams
    seed: int
    experiment_config: dict[str, Any] = field(default_factory=dict)
    trial_id: int | None = None
    experiment_id: int | None = None
    latest_checkpoint: str | None = None
    max_length: Length | None = None
