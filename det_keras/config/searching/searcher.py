"""The `searcher` section: the search method, its metric, and the number and length of trials."""

# ruff: noqa: RUF009 - `setting` and `optional` return dataclass fields
from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from det_keras.config.kinds import (
    Boolean,
    Choice,
    Integer,
    Kind,
    LengthKind,
    ListOf,
    Number,
    Place,
    Text,
    shown,
)
from det_keras.config.searching.lengths import Length
from det_keras.config.section import TaggedSection, optional, setting
from det_keras.errors import ConfigProblem

#: The searcher of a submitted config without one; the script decides the length of the training.
DEFAULT_SEARCHER: Mapping[str, Any] = {"name": "single", "metric": "val_loss", "smaller_is_better": True}

#: Most trials of a search. Its state is kept in memory and read as a whole: with more, a restart would take minutes.
MOST_TRIALS = 100_000
#: Most rungs of a bracket, and most brackets, which differ in it. Lengths are integers: with a divisor that is of use,
#: further rungs would only repeat the shortest length.
MOST_RUNGS = 100
#: The limits of numbers of a submitted config. Configs that were stored before there were any are still read.
MOST_OF_A_SEARCH: Mapping[str, int] = {
    "max_trials": MOST_TRIALS,
    "max_concurrent_trials": MOST_TRIALS,
    "n_startup_trials": MOST_TRIALS,
    "num_rungs": MOST_RUNGS,
    "max_rungs": MOST_RUNGS,
}

METHODS = ("single", "random", "grid", "adaptive_asha", "async_halving", "tpe")

#: The methods that stop or promote trials at rungs.
ASHA = ("adaptive_asha", "async_halving")
_COUNTED = ("random", "tpe", *ASHA)
_CONCURRENT = ("random", "grid", "tpe", *ASHA)


class _Uuid(Kind[str]):
    def parse(self, raw: Any, place: Place) -> str:
        try:
            return str(uuid.UUID(raw))
        except (ValueError, AttributeError, TypeError):
            raise place.error(f"must be the UUID of a checkpoint, received {shown(raw)}.") from None


@dataclass(frozen=True)
class Searcher(TaggedSection):
    """How trials are chosen. Fields that the method does not use have their defaults.

    Attributes:
        name: the search method.
        metric: the validation metric that ranks trials, under its reported name, such as ``val_loss``.
        smaller_is_better: whether the smallest value of `metric` is the best.
        source_trial_id: a trial whose newest checkpoint gives every trial its first weights.
        source_checkpoint_uuid: a checkpoint that gives every trial its first weights. Excludes `source_trial_id`.
        max_length: how long a fully trained trial is; None if the script decides, or `max_time` does.
        max_trials: number of trials, at most 100,000.
        max_concurrent_trials: largest number of trials that run at once; 0 for no limit but that of the method. At most
            1,000 of a search wait for slots at a time.
        time_metric: the reported metric that measures the length of a trial, such as ``epochs`` or ``batches``.
        max_time: the length of a fully trained trial, in units of `time_metric`.
        divisor: the factor between the lengths of two rungs. One in `divisor` trials passes a rung.
        num_rungs: number of rungs.
        max_rungs: largest number of rungs of a bracket.
        mode: ``aggressive`` runs the bracket with the most rungs, ``conservative`` brackets with every number of rungs,
            ``standard`` the half of them with more rungs.
        bracket_rungs: numbers of rungs of the brackets, in place of those that follow from `mode`.
        stop_once: True for the stopping variant, False for the promoting variant.
        n_startup_trials: number of random points before the first proposed point.
    """

    tag: ClassVar[str] = "name"

    name: str = setting(Choice(METHODS, open=True), "single", required=True)
    metric: str = setting(Text(empty=False), "val_loss", required=True)
    smaller_is_better: bool = setting(Boolean(), True)
    source_trial_id: int | None = optional(Integer(minimum=1))
    source_checkpoint_uuid: str | None = optional(_Uuid())
    max_length: Length | None = optional(LengthKind(minimum=1), omit_null=True)
    max_trials: int | None = optional(Integer(minimum=1), required=True, only=_COUNTED)
    max_concurrent_trials: int = setting(Integer(minimum=0), 16, only=_CONCURRENT)
    time_metric: str | None = optional(Text(empty=False), only=ASHA)
    max_time: int | None = optional(Integer(minimum=1), only=ASHA)
    divisor: float = setting(Number(above=1), 4, only=ASHA)
    num_rungs: int | None = optional(Integer(minimum=1), required=True, only=("async_halving",))
    max_rungs: int = setting(Integer(minimum=1), 5, only=("adaptive_asha",))
    mode: str = setting(
        Choice(("aggressive", "standard", "conservative")), "standard", only=("adaptive_asha",)
    )
    bracket_rungs: tuple[int, ...] = setting(ListOf(Integer(minimum=1)), (), only=("adaptive_asha",))
    stop_once: bool = setting(Boolean(), True, only=ASHA)
    n_startup_trials: int = setting(Integer(minimum=0), 10, only=("tpe",))

    @classmethod
    def check(cls, values: Mapping[str, Any], place: Place) -> Iterator[ConfigProblem]:
        """Yield problems between fields."""
        # A field with an invalid value counts as given.
        if all(
            values.get(name, "wrong") is not None for name in ("source_trial_id", "source_checkpoint_uuid")
        ):
            yield place.problem(
                "`source_trial_id` and `source_checkpoint_uuid` exclude each other. Keep one of them."
            )
        if values.get("name") not in ASHA or not {"max_length", "time_metric", "max_time"} <= set(values):
            return
        metric, time = values["time_metric"], values["max_time"]
        if metric is None and time is None:
            if values["max_length"] is None:
                yield place.problem(
                    f"`{values['name']}` requires a length. Give `time_metric` and `max_time`, such as `epochs` and 64,"
                    " or `max_length: {epochs: 64}`."
                )
        elif time is None:
            yield place.below("max_time").problem(f"is required with `time_metric: {metric}`.")
        elif metric is None:
            yield place.below("time_metric").problem(
                f"is required with `max_time: {time}`, such as `epochs` or `batches`."
            )
