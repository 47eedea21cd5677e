from __future__ import annotations

import pytest

from det_keras.config import Length, Unit
from det_keras.errors import ConfigError


@pytest.mark.parametrize(
    ("records", "batch", "one_floor", "one_keras", "ten_floor", "ten_keras"),
    [
        (60000, 128, 468, 469, 4687, 4690),
        (60000, 32, 1875, 1875, 18750, 18750),
        (50000, 64, 781, 782, 7812, 7820),
        (100, 128, 1, 1, 7, 10),
    ],
)
def test_epochs_convert_to_batches(
    records: int, batch: int, one_floor: int, one_keras: int, ten_floor: int, ten_keras: int
) -> None:
    per_pass = -(-records // batch)
    one, ten = Length(Unit.EPOCHS, 1), Length(Unit.EPOCHS, 10)

    assert (one.to_batches(batch, records), ten.to_batches(batch, records)) == (one_floor, ten_floor)
    assert one.to_batches(batches_per_epoch=per_pass) == one_keras
    assert ten.to_batches(batches_per_epoch=per_pass) == ten_keras


def test_configured_records_win_over_the_data() -> None:
    assert Length(Unit.EPOCHS, 1).to_batches(10, 1000, batches_per_epoch=7) == 100


@pytest.mark.parametrize(("records", "batches"), [(1000, 31), (31, 1), (1, 1), (64, 2)])
def test_records_convert_to_batches(records: int, batches: int) -> None:
    assert Length(Unit.RECORDS, records).to_batches(32) == batches


@pytest.mark.parametrize("unit", Unit)
def test_zero_is_unlimited_in_every_unit(unit: Unit) -> None:
    length = Length(unit, 0)

    assert length.is_unlimited
    assert length.to_batches() == 0
    assert length.fraction(50) == 0.0


def test_missing_batch_size_is_named() -> None:
    with pytest.raises(ValueError, match="hyperparameter `global_batch_size`"):
        Length(Unit.RECORDS, 100).to_batches()


def test_batch_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="`global_batch_size` is 0"):
        Length(Unit.EPOCHS, 1).to_batches(0, 100)


def test_unknown_epoch_names_the_field_to_set() -> None:
    with pytest.raises(ValueError, match="Set `records_per_epoch`"):
        Length(Unit.EPOCHS, 1).to_batches(32)


def test_batches_convert_back() -> None:
    assert Length(Unit.RECORDS, 1).count(10, 32) == 320
    assert Length(Unit.EPOCHS, 1).count(234, 128, 60000) == 0.5
    assert Length(Unit.EPOCHS, 1).count(3, batches_per_epoch=2) == 1.5
    assert Length(Unit.BATCHES, 1).count(3) == 3


def test_fraction_stays_between_zero_and_one() -> None:
    length = Length.batches(400)

    assert [length.fraction(done) for done in (0, 100, 400, 500)] == [0, 0.25, 1, 1]


@pytest.mark.parametrize("unit", Unit)
def test_each_unit_reads_and_writes(unit: Unit) -> None:
    length = Length.parse({unit.value: 3})

    assert length == Length(unit, 3)
    assert length.to_dict() == {unit.value: 3}


def test_integral_float_and_null_neighbours_are_fine() -> None:
    assert Length.parse({"epochs": 3.0, "batches": None}) == Length(Unit.EPOCHS, 3)


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"batches": 1, "epochs": 1},
        {"steps": 1},
        {"batches": 1, "x": 2},
        {1: 2},
        10,
        "10",
        None,
        [1],
        True,
    ],
    ids=str,
)
def test_wrong_shape_names_the_units(raw: object) -> None:
    with pytest.raises(ConfigError, match="requires exactly one of batches, records, epochs") as caught:
        Length.parse(raw, path="min_validation_period")
    assert caught.value.problems[0].path == "min_validation_period"


@pytest.mark.parametrize("value", [-1, 1.5, "3", True, [1]], ids=str)
def test_wrong_number_is_shown(value: object) -> None:
    with pytest.raises(ConfigError, match="must be a whole number, at least 0") as caught:
        Length.parse({"epochs": value}, path="p")
    assert repr(value) in str(caught.value)
    assert caught.value.problems[0].path == "p.epochs"


def test_zero_is_refused_where_one_is_the_least() -> None:
    with pytest.raises(ConfigError, match="at least 1, received 0"):
        Length.parse({"batches": 0}, minimum=1)


@pytest.mark.parametrize(
    ("length", "text"),
    [(Length(Unit.EPOCHS, 1), "1 epoch"), (Length.batches(1), "1 batch"), (Length.batches(2), "2 batches")],
)
def test_length_reads_as_words(length: Length, text: str) -> None:
    assert str(length) == text
