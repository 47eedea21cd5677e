"""The small sections of an experiment config."""

# ruff: noqa: RUF009 - `setting` and `optional` return dataclass fields
from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from det_keras.config.kinds import Boolean, Choice, Integer, ListOf, Place, PlainMapping, PowerOfTwo, Text
from det_keras.config.problems import Problems
from det_keras.config.section import Section, SectionKind, optional, setting
from det_keras.errors import ConfigProblem


def _seed_from_clock() -> int:
    return int(time.time()) & 0xFFFFFFFF


@dataclass(frozen=True)
class Reproducibility(Section):
    """Where randomness starts.

    Attributes:
        experiment_seed: the seed of the search and of the seeds of trials.
        deterministic_ops: use deterministic kernels of TensorFlow, which are slower.
        virtual_workers: parts of each batch whose results do not depend on how many workers compute them, a power of
            two; 1 for none.
        verify_resume: when a copy of the first trial resumes from its first checkpoint and is compared with its second:
            ``once`` for files that the master has not verified yet, ``always`` for each experiment, or ``never``. None
            for the master's own default, which is ``once``. A Determined master verifies nothing.
    """

    experiment_seed: int = setting(Integer(minimum=0, maximum=2**32 - 1), factory=_seed_from_clock)
    deterministic_ops: bool = setting(Boolean(), False)
    virtual_workers: int = setting(PowerOfTwo(), 1)
    verify_resume: str | None = optional(Choice(("once", "never", "always")))


@dataclass(frozen=True)
class Optimizations(Section):
    """How gradients are exchanged and in which precision a step is computed.

    Attributes:
        aggregation_frequency: batches whose gradients are added up for one update.
        average_aggregated_gradients: divide the added gradients by `aggregation_frequency`.
        collective_engine: what exchanges gradients between workers: ``horovod``, ``builtin``, or ``auto`` for Horovod
            where it can be imported.
        divergence_check_period: batches between two comparisons of the workers' weights; 0 for none.
        gradient_compression: exchange gradients as 16-bit floats.
        mixed_precision: ``O1`` to ``O3`` set Keras's policy `mixed_float16`.
    """

    aggregation_frequency: int = setting(Integer(minimum=1), 1)
    average_aggregated_gradients: bool = setting(Boolean(), True)
    collective_engine: str = setting(Choice(("auto", "horovod", "builtin")), "auto")
    average_training_metrics: bool = setting(Boolean(), True, inert=True)
    divergence_check_period: int = setting(Integer(minimum=0), 100)
    gradient_compression: bool = setting(Boolean(), False)
    mixed_precision: str = setting(
        Choice(("O0", "O1", "O2", "O3"), hint="The first character is the letter O, not a zero."), "O0"
    )
    grad_updates_size_file: str | None = optional(Text(), inert=True)
    tensor_fusion_threshold: int = setting(Integer(minimum=0), 64, inert=True)
    tensor_fusion_cycle_time: int = setting(Integer(minimum=0), 1, inert=True)
    auto_tune_tensor_fusion: bool = setting(Boolean(), False, inert=True)


@dataclass(frozen=True)
class Profiling(Section):
    """What is measured of a training besides its metrics.

    Attributes:
        enabled: report the load of the machine and of the training every 10 seconds while the script runs.
        layers: report the norms of weights and gradients by layer, whenever training metrics are reported. Training
            computes the same numbers.
        begin_on_batch: a field of the original. The load is reported from the beginning.
        end_after_batch: a field of the original. The load is reported until the end.
        sync_timings: a field of the original.
    """

    enabled: bool = setting(Boolean(), True)
    layers: bool = setting(Boolean(), False)
    begin_on_batch: int = setting(Integer(minimum=0), 0, inert=True)
    end_after_batch: int | None = optional(Integer(minimum=0), inert=True)
    sync_timings: bool = setting(Boolean(), True, inert=True)

    @classmethod
    def check(cls, values: Mapping[str, Any], place: Place) -> Iterator[ConfigProblem]:
        """Yield problems between fields."""
        begin, end = values.get("begin_on_batch"), values.get("end_after_batch")
        if begin is not None and end is not None and end < begin:
            yield place.below("end_after_batch").problem(
                f"is {end}, before `begin_on_batch`, which is {begin}."
            )


#: Most days for which logs may be kept, other than for ever.
LONGEST_RETENTION_DAYS = 32_767


@dataclass(frozen=True)
class RetentionPolicy(Section):
    """How long trial logs are kept: -1 forever, None as the master says.

    Attributes:
        log_retention_days: days that logs are kept after the end of the experiment; -1 forever, None as the
            master was started (`--log-retention-days`), forever by default.
    """

    log_retention_days: int | None = optional(Integer(minimum=-1, maximum=LONGEST_RETENTION_DAYS))

    @classmethod
    def parse(cls, raw: Any, place: Place) -> RetentionPolicy:
        """Return the section; its only key must be given, even if it is null."""
        problems = Problems()
        if place.strict and isinstance(raw, Mapping) and "log_retention_days" not in raw:
            message = "is required: a number of days, or -1 forever."
            problems.append(place.below("log_retention_days").problem(message))
        with problems.collected():
            section = super().parse(raw, place)
        problems.raise_if_any()
        return section


@dataclass(frozen=True)
class Webhooks(Section):
    """Which webhooks are told of an experiment, besides those of its workspace and of all.

    Attributes:
        webhook_id: numbers of webhooks of mode SPECIFIC in the workspace of the experiment.
        webhook_name: names of such webhooks.
        exclude: tell no webhook of this experiment.
    """

    webhook_id: tuple[int, ...] = setting(ListOf(Integer(minimum=1)), ())
    webhook_name: tuple[str, ...] = setting(ListOf(Text()), ())
    exclude: bool = setting(Boolean(), False)


@dataclass(frozen=True)
class Integrations(Section):
    """Other systems that take part.

    Attributes:
        pachyderm: a field of the original, without effect.
        webhooks: which webhooks are told of the experiment.
    """

    pachyderm: dict[str, Any] | None = optional(PlainMapping(), inert=True)
    webhooks: Webhooks | None = optional(SectionKind(Webhooks))


@dataclass(frozen=True)
class Slurm(Section):
    """Options for a Slurm cluster, which have no effect."""

    slots_per_node: int | None = optional(Integer(minimum=1), omit_null=True)
    gpu_type: str | None = optional(Text(), omit_null=True)
    sbatch_args: tuple[str, ...] | None = optional(ListOf(Text()), omit_null=True)


@dataclass(frozen=True)
class Pbs(Section):
    """Options for a PBS cluster, which have no effect."""

    slots_per_node: int | None = optional(Integer(minimum=1), omit_null=True)
    pbsbatch_args: tuple[str, ...] | None = optional(ListOf(Text()), omit_null=True)


@dataclass(frozen=True)
class Kerberos(Section):
    """A field of Determined without effect."""

    config_file: str | None = optional(Text(), omit_null=True)


@dataclass(frozen=True)
class Security(Section):
    """A section of Determined without effect."""

    kerberos: Kerberos | None = optional(SectionKind(Kerberos), omit_null=True)
