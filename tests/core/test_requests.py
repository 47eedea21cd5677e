"""Requests to stop, operations of a searcher, metadata and event files, as scripts of earlier releases use them."""

from __future__ import annotations

import threading

import pytest
from ranks import on_ranks

from det_keras import core
from det_keras.core.backend.base import Operation
from det_keras.core.backend.local import LocalBackend, RunDirectory
from det_keras.core.backend.shared import SharedBackend
from det_keras.core.preempt import PreemptContext
from det_keras.core.searcher import SearcherContext
from det_keras.core.tensorboard import EventFiles
from det_keras.errors import InvalidHP
from det_keras.storage import DirectoryStorage


class Master(LocalBackend):
    """A run directory that is asked to stop, and has a searcher with two wishes."""

    is_preemptible = True

    def __init__(self, folder):
        super().__init__(RunDirectory(folder))
        self.asked_to_stop = threading.Event()
        self.heard = []
        self.wishes = [5, 10]

    def wait_for_preemption(self, timeout_s):
        return self.asked_to_stop.wait(timeout_s)

    def acknowledge_preemption(self):
        self.heard.append("acknowledged")

    def report_progress(self, fraction):
        self.heard.append(fraction)

    def current_operation(self):
        return Operation(self.wishes[0]) if self.wishes else Operation(10, completed=True)

    def complete_operation(self, operation, metric):
        assert operation.length == self.wishes.pop(0)
        self.heard.append((operation.length, metric))

    def report_early_exit(self, reason):
        self.heard.append(reason)


@pytest.fixture
def master(tmp_path):
    backend = Master(tmp_path)
    yield backend
    backend.asked_to_stop.set()
    backend.close()


def preempt_on(distributed, master, mode, ask=None):
    context = PreemptContext(
        SharedBackend(master if distributed.is_chief else None, distributed), distributed, mode, ask=ask
    )
    return context.start()


def test_workers_ask_chief_and_hear_the_same(master):
    def work(distributed):
        preempt = preempt_on(distributed, master, core.PreemptMode.WorkersAskChief)
        answers = [preempt.should_preempt()]
        if distributed.is_chief:
            master.asked_to_stop.set()
        while not answers[-1]:
            answers.append(preempt.should_preempt(auto_ack=False))
        return answers

    first, second = on_ranks(2, work)
    assert first == second
    assert first[0] is False
    assert master.heard == []


def test_chief_acknowledges_once(master):
    master.asked_to_stop.set()

    def work(distributed):
        preempt = preempt_on(distributed, master, core.PreemptMode.WorkersAskChief)
        while not preempt.should_preempt():
            pass
        return preempt.should_preempt()

    assert on_ranks(2, work) == [True, True]
    assert master.heard == ["acknowledged"]


def test_worker_may_not_ask_in_chief_only(master):
    def work(distributed):
        return preempt_on(distributed, master, core.PreemptMode.ChiefOnly).should_preempt()

    first, second = on_ranks(2, work)
    assert first is False
    assert "only the chief may" in str(second)


def test_each_worker_asks_the_master_for_itself(master):
    def work(distributed):
        ask = master.asked_to_stop.wait
        preempt = preempt_on(distributed, master, core.PreemptMode.WorkersAskMaster, ask)
        before = preempt.should_preempt()
        distributed.allgather(None)
        master.asked_to_stop.set()
        while not preempt.should_preempt():
            pass
        return before

    assert on_ranks(2, work) == [False, False]


@pytest.mark.parametrize("size", [1, 2])
def test_operations_come_until_the_searcher_is_content(master, size):
    def work(distributed):
        backend = SharedBackend(master if distributed.is_chief else None, distributed)
        lengths = []
        for operation in SearcherContext(backend, distributed, {"epochs": 10}).operations():
            lengths.append(operation.length)
            if distributed.is_chief:
                operation.report_progress(operation.length / 2)
                operation.report_completed(operation.length * 0.1)
        return lengths

    assert on_ranks(size, work) == [[5, 10]] * size
    assert master.heard == [0.5, (5, 0.5), 0.5, (10, 1.0), "acknowledged"]


def test_operation_that_is_not_completed_is_an_error(master):
    operations = SearcherContext(master, core.DistributedContext()).operations()
    next(operations)
    with pytest.raises(RuntimeError, match="report_completed"):
        next(operations)


def test_operation_is_completed_once(master):
    operation = next(SearcherContext(master, core.DistributedContext()).operations())
    operation.report_completed(1.0)
    with pytest.raises(RuntimeError, match="twice"):
        operation.report_completed(1.0)
    with pytest.raises(RuntimeError, match="after `report_completed`"):
        operation.report_progress(1)


@pytest.mark.parametrize(
    ("length", "unit", "number"),
    [
        ({"epochs": 7}, core.Unit.EPOCHS, 7),
        ({"batches": 3}, core.Unit.BATCHES, 3),
        (4, None, 4),
        (None, None, 1),
    ],
)
def test_without_a_searcher_there_is_one_operation(tmp_path, length, unit, number):
    with core.init(run_dir=tmp_path) as context:
        searcher = SearcherContext(context.backend, context.distributed, length)
        lengths = []
        for operation in searcher.operations():
            lengths.append(operation.length)
            operation.report_completed(0.0)
        assert lengths == [number]
        assert searcher.get_configured_units() is unit


def test_metadata_of_a_run_is_replaced_as_a_whole(tmp_path):
    with core.init(run_dir=tmp_path) as context:
        assert context.train.get_metadata() == {}
        context.train.set_metadata({"a": {"b": 1}})
        assert context.train.set_metadata({"c": 2}) == {"c": 2}
    with core.init(run_dir=tmp_path) as context:
        assert context.train.get_metadata() == {"c": 2}


def test_best_validation_is_the_chiefs_to_ask(master):
    def work(distributed):
        backend = SharedBackend(master if distributed.is_chief else None, distributed)
        train = core.Context(backend, DirectoryStorage(master.run.checkpoints), distributed=distributed).train
        answer = train.get_experiment_best_validation() if distributed.is_chief else None
        return answer, distributed.allgather(1), train

    (answer, together, _), (_, _, worker) = on_ranks(2, work)
    assert (answer, together) == (None, [1, 1])
    with pytest.raises(RuntimeError, match="only the chief"):
        worker.get_experiment_best_validation()


def test_modes_may_be_given_by_their_values(master):
    context = core.Context(
        master, DirectoryStorage(master.run.checkpoints), preempt_mode="CHIEF_ONLY", tensorboard_mode="MANUAL"
    )
    assert context.tensorboard_mode is core.TensorboardMode.MANUAL
    assert context.preempt._mode is core.PreemptMode.ChiefOnly
    with pytest.raises(ValueError, match="SOMETIMES"):
        next(context.searcher.operations("SOMETIMES"))


def test_invalid_hyperparameters_are_reported(master):
    context = core.Context(master, DirectoryStorage(master.run.checkpoints))
    with pytest.raises(InvalidHP), context:
        raise InvalidHP("too big")
    assert master.heard == ["EXITED_REASON_INVALID_HP"]


def test_early_exit_takes_the_enum_and_its_value(master):
    context = core.Context(master, DirectoryStorage(master.run.checkpoints))
    context.train.report_early_exit(core.EarlyExitReason.USER_REQUESTED_STOP)
    context.train.report_early_exit("EXITED_REASON_INVALID_HP")
    assert master.heard == ["EXITED_REASON_USER_REQUESTED_STOP", "EXITED_REASON_INVALID_HP"]


def test_event_files_are_copied_as_they_grow(tmp_path):
    storage = DirectoryStorage(tmp_path / "storage")
    events = EventFiles(tmp_path / "local", storage, "c/trial/1", watched=True, period_s=0.01)
    (tmp_path / "local" / "train").mkdir(parents=True)
    source, copy = (
        tmp_path / "local" / "train" / "events",
        tmp_path / "storage" / "c" / "trial" / "1" / "train" / "events",
    )
    for content in ("a", "ab"):
        source.write_text(content)
        while not copy.exists() or copy.read_text() != content:
            threading.Event().wait(0.01)
    source.write_text("abc")
    events.close()
    assert copy.read_text() == "abc"
    assert [path.name for path in copy.parent.iterdir()] == ["events"]


def test_temporary_event_files_are_stored_and_gone_at_the_end(tmp_path):
    events = EventFiles(None, DirectoryStorage(tmp_path), "p", watched=True)
    path = events.path
    (path / "a").write_text("b")
    events.close()
    events.close()
    assert (tmp_path / "p" / "a").read_text() == "b"
    assert not path.exists()


def test_event_files_are_chosen_and_renamed_by_hand(tmp_path):
    storage = DirectoryStorage(tmp_path / "storage")
    events = EventFiles(tmp_path / "local", storage, "p", rank=3)
    events.path.mkdir()
    for name in ("keep", "drop"):
        (events.path / name).write_text(name)
    events.upload(lambda path: path.name == "keep", lambda path, rank: path.with_name(f"{path.name}-{rank}"))
    assert [path.name for path in (tmp_path / "storage" / "p").iterdir()] == ["keep-3"]
    with pytest.raises(ValueError, match="relative"):
        events.upload(mangler=lambda path, _: tmp_path / path)


def test_tensorboard_path_alone_is_in_the_run_directory(tmp_path):
    with core.init(run_dir=tmp_path) as context:
        assert context.train.get_tensorboard_path() == tmp_path / "tensorboard"


def test_checkpoints_go_where_the_argument_says(tmp_path):
    section = {"type": "directory", "container_path": str(tmp_path / "b")}
    for place, folder in ((tmp_path / "a", "a"), (section, "b")):
        with (
            core.init(run_dir=tmp_path / "run", checkpoint_storage=place) as context,
            context.checkpoint.store_path({"steps_completed": 1}) as (_, uuid),
        ):
            pass
        assert (tmp_path / folder / uuid / "manifest.json").is_file()
    with pytest.raises(ValueError, match="s3://bucket"):
        core.init(run_dir=tmp_path / "run", checkpoint_storage="s3://bucket")
