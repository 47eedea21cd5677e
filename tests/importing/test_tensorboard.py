"""Event files, written by TensorBoard's own writer."""

from __future__ import annotations

import math
from datetime import datetime, timezone

import pytest

from det_keras.importing import tensorboard
from det_keras.importing.base import BrokenRunError, WrongPathError
from importing.stores import events, simple, tensor
from importing.test_base import rows

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)


def found(path):
    return list(tensorboard.find(path, None, AT))


def read(path):
    (run,) = found(path)
    return run.read()


def test_scalars_of_both_kinds_are_read(tmp_path):
    events(
        tmp_path / "größe",
        *((step, [simple("loss/a.b", 1 / (step + 1))]) for step in range(300)),
        *((step, [tensor("val_acc", step / 4, is_first=step == 0)]) for step in range(300)),
        (3, [simple("x", 1.0), simple("y", 2.0)]),
    )
    run = read(tmp_path)
    expected = {step: {"loss/a.b": 1 / (step + 1)} for step in range(300)}
    expected[3] |= {"x": 1.0, "y": 2.0}
    # Floats of 32 bits.
    found_rows = rows(run.tables["training"])
    assert found_rows.keys() == expected.keys()
    assert all(found_rows[step] == pytest.approx(expected[step], rel=1e-7) for step in expected)
    assert rows(run.tables["validation"]) == {step: {"val_acc": step / 4} for step in range(300)}
    assert (run.name, run.state) == ("größe", "COMPLETED")
    assert run.ended == datetime.fromtimestamp(1_700_000_600, timezone.utc)
    assert run.started == datetime.fromtimestamp(1_700_000_000, timezone.utc)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "bool"])
def test_tensors_of_other_types_keep_their_values(tmp_path, dtype):
    values = [0, 1, 0, 1] if dtype == "bool" else [0, 1, 7, 0]
    events(
        tmp_path / "run",
        *((step, [tensor("n", value, dtype, is_first=not step)]) for step, value in enumerate(values)),
    )
    table = read(tmp_path).tables["training"]
    assert table.metrics["n"].values.tolist() == values


def test_whole_numbers_of_32_bits_are_not_taken_for_floats(tmp_path):
    def value(x: int, *, is_first: bool):
        found_value = tensor("n", 0, "int32", is_first=is_first)
        found_value.tensor.ClearField("int_val")
        found_value.tensor.tensor_content = x.to_bytes(4, "little")
        return found_value

    values = [5, 0, 1, 0, 7]
    events(tmp_path / "run", *((step + 1, [value(x, is_first=not step)]) for step, x in enumerate(values)))
    assert read(tmp_path).tables["training"].metrics["n"].values.tolist() == values


def test_steps_and_values_of_all_kinds_are_kept(tmp_path):
    steps = [0, 1, 127, 128, 1 << 40, -5]
    values = [math.nan, math.inf, -math.inf, 0.0, 1.5, -2.0]
    both = list(zip(steps, values, strict=True))
    events(tmp_path / "run", *((step, [simple("n" * 100, value)]) for step, value in both * 2))
    table = read(tmp_path).tables["training"]
    assert table.steps.tolist() == sorted(steps)
    expected = [str(value) for _, value in sorted(both, key=lambda pair: pair[0])]
    assert [str(value) for value in table.metrics["n" * 100].values.tolist()] == expected


def test_last_event_of_a_step_counts_also_in_another_file(tmp_path):
    events(tmp_path / "run", (1, [simple("a", 1.0)]), (1, [simple("a", 2.0)]), wall_time=1e9, suffix=".z")
    events(tmp_path / "run", (1, [simple("a", 3.0)]), wall_time=2e9, suffix=".b")
    assert rows(read(tmp_path).tables["training"]) == {1: {"a": 3.0}}


def test_folders_of_the_callback_belong_to_one_run(tmp_path):
    events(tmp_path / "a" / "b" / "train", (1, [simple("epoch_loss", 1.0)]))
    events(tmp_path / "a" / "b" / "validation", (1, [simple("epoch_loss", 2.0)]))
    events(tmp_path / "a" / "other", (1, [simple("loss", 3.0)]))
    names = {run.read().name: run.read() for run in found(tmp_path)}
    assert sorted(names) == ["a/b", "a/other"]
    tables = names["a/b"].tables
    assert rows(tables["training"]) == {1: {"epoch_loss": 1.0}}
    assert rows(tables["validation"]) == {1: {"epoch_loss": 2.0}}


def test_directory_of_the_callback_itself_is_a_run(tmp_path):
    events(tmp_path / "logs" / "train", (1, [simple("epoch_loss", 1.0)]))
    assert read(tmp_path / "logs").name == "logs"
    assert read(tmp_path / "logs" / "train").name == "train"


def test_hyperparameters_and_the_status_of_the_plugin_are_read(tmp_path):
    api = pytest.importorskip("tensorboard.plugins.hparams.summary_v2")
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import plugin_data_pb2

    start = Summary.FromString(
        api.hparams_pb({"lr": 0.5, "units": 32, "opt": "adam", "flag": True}).SerializeToString()
    )
    end = plugin_data_pb2.HParamsPluginData(
        version=0, session_end_info=plugin_data_pb2.SessionEndInfo(status="STATUS_FAILURE")
    )
    value = Summary.Value(tag="_hparams_/session_end_info")
    value.metadata.plugin_data.plugin_name = "hparams"
    value.metadata.plugin_data.content = end.SerializeToString()
    events(tmp_path / "run", (0, list(start.value)), (1, [simple("a", 1.0)]), (0, [value]))
    run = read(tmp_path)
    assert run.hparams == {"lr": 0.5, "units": 32, "opt": "adam", "flag": True}
    assert type(run.hparams["units"]) is int
    assert run.state == "ERROR"
    assert rows(run.tables["training"]) == {1: {"a": 1.0}}


def test_images_texts_and_vectors_are_left_out(tmp_path):
    image = simple("image", 0.0)
    image.ClearField("simple_value")
    image.image.encoded_image_string = b"x" * 100_000
    text = tensor("text", 1.0)
    text.metadata.plugin_data.plugin_name = "text"
    vector = tensor("vector", [1.0, 2.0], is_first=True)
    events(tmp_path / "run", (0, [image]), (0, [text]), (0, [vector]), (1, [simple("loss", 1.0)]))
    assert rows(read(tmp_path).tables["training"]) == {1: {"loss": 1.0}}


def test_file_that_ends_anywhere_has_its_complete_records(tmp_path):
    file = events(tmp_path / "run", *((step, [simple("loss", 1.0)]) for step in range(3)))
    data = file.read_bytes()
    counts = []
    for size in range(len(data) + 1):
        file.write_bytes(data[:size])
        tables = read(tmp_path).tables
        counts.append(len(tables["training"].steps) if tables else 0)
    assert counts == sorted(counts)
    assert set(counts) == {0, 1, 2, 3}


def test_every_damaged_byte_is_named_with_its_place(tmp_path):
    file = events(tmp_path / "run", *((step, [simple("loss", 1.0)]) for step in range(1, 3)))
    data = file.read_bytes()
    for place in range(len(data)):
        file.write_bytes(data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :])
        with pytest.raises(BrokenRunError, match=rf"{file}, byte \d+: ") as raised:
            read(tmp_path)
        named = int(str(raised.value).split("byte ")[1].split(":")[0])
        assert named <= place


def test_fingerprint_changes_when_the_run_grows_and_not_when_another_does(tmp_path):
    events(tmp_path / "a", (1, [simple("loss", 1.0)]))
    events(tmp_path / "b", (1, [simple("loss", 1.0)]))
    before = {run.id: run.fingerprint for run in found(tmp_path)}
    events(tmp_path / "b", (2, [simple("loss", 0.5)]), suffix=".second")
    after = {run.id: run.fingerprint for run in found(tmp_path)}
    assert [before[name] == after[name] for name in sorted(before)] == [True, False]


def test_path_without_event_files_names_what_is_expected(tmp_path):
    (tmp_path / "file").write_text("")
    for path, problem in {
        tmp_path / "missing": "does not exist",
        tmp_path / "file": "is no directory",
        tmp_path: "has no event files",
    }.items():
        with pytest.raises(
            WrongPathError, match=rf"{path} {problem}\. Expected a directory with event files"
        ):
            found(path)
