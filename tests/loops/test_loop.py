"""Loops written by hand: what is reported and saved, how they begin and end, and what is refused."""

from __future__ import annotations

import json
import signal
from types import SimpleNamespace

import keras
import loop_kinds
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import det_keras as det
from det_keras.core.backend import Operation
from det_keras.errors import DetError, ModelMismatchError

ROWS, BATCH = 40, 8
STEPS = ROWS // BATCH


def arrays():
    x = np.random.RandomState(1).normal(size=(ROWS, 3)).astype("float32")
    return x, x.sum(1, keepdims=True)


class Linear:
    """A model with dropout, trained by hand."""

    def __init__(self, context, rate=0.05):
        self.context = context
        self.model = keras.Sequential([keras.Input((3,)), layers.Dropout(0.2), layers.Dense(1)])
        self.optimizer = context.wrap_optimizer(keras.optimizers.SGD(rate, momentum=0.9))
        context.track(model=self.model, optimizer=self.optimizer)

    @tf.function
    def step(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.model(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply(gradients, self.model.trainable_variables)
        return loss

    def train(
        self, epochs, *, before=lambda: None, after_batch=lambda: None, after_epoch=lambda: None, **options
    ):
        for _ in self.context.epochs(epochs):
            before()
            for x, y in self.context.batches(*arrays(), batch_size=BATCH, **options):
                self.context.report(loss=self.step(x, y))
                after_batch()
            after_epoch()
        return [variable.numpy().tolist() for variable in [*self.model.variables, *self.optimizer.variables]]


@pytest.fixture
def opened(tmp_path):
    """Return a function that opens a context of one run directory, as a new process would."""
    contexts = []

    def open_context(folder="run", **options):
        for context in contexts:
            context.close()
        keras.utils.clear_session(free_memory=False)
        contexts.append(det.keras.init(**{"run_dir": tmp_path / folder, "seed": 4, **options}))
        return contexts[-1]

    yield open_context
    for context in contexts:
        context.close()


def reports(folder, group):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [(row["steps_completed"], row["metrics"]) for row in rows if row["group"] == group]


def checkpoints(folder):
    metadata = [json.loads(path.read_text()) for path in folder.glob("checkpoints/*/metadata.json")]
    return sorted(one["steps_completed"] for one in metadata)


class TestBatches:
    def test_batches_without_shuffling_are_slices(self, opened):
        context = opened()
        Linear(context)
        x, y = arrays()
        for _ in context.epochs(2):
            batches = context.batches(x, y, batch_size=16, shuffle=False)
            assert len(batches) == 3
            for batch_x, batch_y in batches:
                part = slice(batches.step * 16, batches.step * 16 + 16)
                np.testing.assert_array_equal(batch_x, x[part])
                np.testing.assert_array_equal(batch_y, y[part])

    def test_shuffled_batches_are_those_of_fit(self, opened):
        seen = {"fit": [], "loop": []}

        class Recorder(keras.Model):
            def call(self, x):
                return x

            def train_step(self, data):
                seen["fit"].append(data[0].numpy().tolist())
                return {"loss": 0.0}

        model = Recorder()
        model.compile(optimizer="sgd", loss="mse", run_eagerly=True)
        opened("fit").fit(model, *arrays(), batch_size=BATCH, epochs=2, verbose=0, validate=False)
        context = opened("loop")
        Linear(context)
        for _ in context.epochs(2):
            seen["loop"] += [x.numpy().tolist() for x, _ in context.batches(*arrays(), batch_size=BATCH)]
        assert seen["loop"] == seen["fit"]

    @pytest.mark.parametrize("made", ["once", "in each epoch"])
    def test_pipeline_is_read_as_in_a_plain_loop(self, made, opened):
        def pipeline():
            return tf.data.Dataset.range(20).shuffle(20).batch(6)

        def read(epochs, read_pass):
            tf.keras.utils.set_random_seed(4)
            whole = pipeline()
            return [read_pass(whole if made == "once" else pipeline()) for _ in epochs]

        plain = read(range(3), lambda dataset: [batch.numpy().tolist() for batch in dataset])
        context = opened()
        Linear(context)
        ours = read(
            context.epochs(3), lambda dataset: [batch.numpy().tolist() for batch in context.batches(dataset)]
        )
        assert ours == plain

    def test_input_without_targets_arrives_as_it_is(self, opened):
        context = opened()
        Linear(context)
        for _ in context.epochs(1):
            (batch,) = context.batches(arrays()[0], batch_size=ROWS, shuffle=False)
            np.testing.assert_array_equal(batch, arrays()[0])

    def test_passes_of_an_epoch_shuffle_differently(self, opened):
        context = opened()
        Linear(context)
        x = np.arange(50)
        for _ in context.epochs(1):
            first, second, third = ([*context.batches(x, batch_size=50)] for _ in range(3))
        assert len({tuple(batch.numpy().tolist()) for (batch,) in (first, second, third)}) == 3

    def test_second_iteration_over_the_same_batches_is_refused(self, opened):
        context = opened()
        Linear(context)
        for _ in context.epochs(1):
            batches = context.batches(*arrays(), batch_size=BATCH)
            list(batches)
            with pytest.raises(ValueError, match="were read in this epoch already"):
                list(batches)


class TestReports:
    def test_training_metrics_are_the_means_of_keras(self, opened, tmp_path):
        context = opened()
        linear, mean, expected = Linear(context), keras.metrics.Mean(), []
        context.track(mean=mean)
        for _ in context.epochs(2):
            mean.reset_state()
            # 40 rows in batches of 16: the last has 8.
            for x, y in context.batches(*arrays(), batch_size=16):
                loss = linear.step(x, y)
                mean.update_state(loss, sample_weight=len(x))
                context.report(loss=loss, mean=mean)
            expected.append((3 * len(expected) + 3, float(mean.result())))
        found = reports(tmp_path / "run", "training")
        assert [(steps, metrics["mean"]) for steps, metrics in found] == expected
        np.testing.assert_allclose(
            [metrics["loss"] for _, metrics in found], [value for _, value in expected], 1e-6
        )

    def test_scheduling_unit_reports_the_means_so_far(self, opened, tmp_path):
        context = opened(config={"scheduling_unit": 2})
        losses = []
        linear = Linear(context)
        for _ in context.epochs(1):
            for x, y in context.batches(*arrays(), batch_size=BATCH):
                losses.append(float(linear.step(x, y)))
                context.report(loss=losses[-1])
        found = reports(tmp_path / "run", "training")
        assert [steps for steps, _ in found] == [2, 4, 5]
        np.testing.assert_allclose(
            [metrics["loss"] for _, metrics in found], [np.mean(losses[:n]) for n in (2, 4, 5)]
        )

    def test_values_are_read_when_a_report_is_due(self, opened):
        read = []

        class Lazy:
            def __array__(self, dtype=None, copy=None):
                read.append(context.core is not None)
                return np.array(1.0)

        context = opened(config={"scheduling_unit": 4})
        linear = Linear(context)
        seen = []
        for _ in context.epochs(1):
            for x, y in context.batches(*arrays(), batch_size=BATCH):
                linear.step(x, y)
                context.report(value=Lazy())
                seen.append(len(read))
        # The first four are read together, after the fourth batch.
        assert seen == [0, 0, 0, 0, 4]

    def test_validation_is_reported_with_its_prefix_and_counts(self, opened, tmp_path):
        context = opened()
        accuracy = keras.metrics.BinaryAccuracy()
        Linear(context).train(
            2, after_epoch=lambda: context.report_validation(val_loss=tf.constant(0.5), auc=accuracy)
        )
        assert reports(tmp_path / "run", "validation") == [
            (5 * n, {"batches": 5 * n, "epochs": n, "records": 40 * n, "val_loss": 0.5, "val_auc": 0.0})
            for n in (1, 2)
        ]

    def test_second_validation_of_a_batch_is_refused(self, opened):
        context = opened()

        def validate_twice():
            context.report_validation(loss=1.0)
            with pytest.raises(ValueError, match="Batch 5 has a validation already"):
                context.report_validation(accuracy=1.0)

        Linear(context).train(1, after_epoch=validate_twice)

    def test_evaluation_inside_of_a_loop_is_a_validation(self, opened, tmp_path):
        context = opened()
        linear = Linear(context)
        linear.model.compile(loss="mse")
        x, y = arrays()
        linear.train(1, after_epoch=lambda: context.evaluate(linear.model, x, y, report="validation"))
        ((steps, metrics),) = reports(tmp_path / "run", "validation")
        assert steps == 5
        assert "val_loss" in metrics

    def test_variables_are_reported_as_they_are_at_the_call(self, opened, tmp_path):
        context = opened()
        linear, count, array = Linear(context), tf.Variable(0.0), np.zeros(())
        context.track(count=count)
        for _ in context.epochs(1):
            for x, y in context.batches(*arrays(), batch_size=BATCH):
                linear.step(x, y)
                context.report(count=count, array=array, rate=linear.optimizer.learning_rate)
                count.assign_add(1.0)
                array += 1.0
                linear.optimizer.learning_rate = 0.0
        ((_, metrics),) = reports(tmp_path / "run", "training")
        assert metrics["count"] == metrics["array"] == 2.0
        assert metrics["rate"] == pytest.approx(0.05 / 5)

    def test_reports_and_validations_before_the_batches_count_none(self, opened, tmp_path):
        context = opened()
        linear = Linear(context)

        first = []
        for _ in context.epochs(2):
            if not first:
                context.report_validation(loss=1.0)
                first.append(1)
            context.report(begun=1.0)
            for x, y in context.batches(*arrays(), batch_size=BATCH):
                context.report(loss=linear.step(x, y))
        assert [steps for steps, _ in reports(tmp_path / "run", "validation")] == [0]
        assert [steps for steps, _ in reports(tmp_path / "run", "training")] == [5, 10]

    def test_evaluation_passes_may_be_read_again_and_own_data_counts_by_reports(self, opened, tmp_path):
        context = opened()
        Linear(context)
        for _ in context.epochs(3):
            for _ in range(4):
                context.report(loss=1.0)
            for _ in range(2):
                assert len(list(context.batches(*arrays(), batch_size=20, training=False, name="val"))) == 2
            context.report_validation(loss=1.0)
        assert [steps for steps, _ in reports(tmp_path / "run", "validation")] == [4, 8, 12]

    def test_loop_without_data_counts_its_reports(self, opened, tmp_path):
        context = opened()
        Linear(context)
        for _ in context.epochs(3):
            for _ in range(4):
                context.report(reward=1.0)
            context.report_validation(reward=2.0)
        assert [steps for steps, _ in reports(tmp_path / "run", "validation")] == [4, 8, 12]
        assert checkpoints(tmp_path / "run")[-1] == 12

    def test_nan_ends_the_trial_where_it_is_to(self, opened):
        context = opened()
        Linear(context)
        epochs = context.epochs(2, on_nan="stop")
        next(epochs)
        for _ in context.batches(*arrays(), batch_size=BATCH):
            context.report(loss=float("nan"))
        with pytest.raises(det.InvalidHP, match="The loss is nan at batch 5"):
            next(epochs)


class TestCheckpoints:
    def test_finished_loop_trains_nothing_again(self, opened):
        first = Linear(opened()).train(2)
        trained = []
        again = Linear(opened()).train(2, after_batch=lambda: trained.append(1))
        assert trained == []
        assert again == first

    def test_models_are_files_that_keras_loads(self, opened, tmp_path):
        context = opened()
        linear = Linear(context)
        other = keras.Sequential([keras.Input((2,)), layers.Dense(2)])
        context.track(other=other)
        linear.train(1)
        context.close()
        (folder,) = (path.parent for path in (tmp_path / "run").glob("checkpoints/*/metadata.json"))
        for name, model in (("model.keras", linear.model), ("other.keras", other)):
            loaded = keras.models.load_model(folder / name)
            for ours, theirs in zip(loaded.weights, model.weights, strict=True):
                np.testing.assert_array_equal(ours, theirs)

    def test_policy_saves_the_best_validation(self, opened, tmp_path):
        config = {"checkpoint_policy": "best", "searcher": {"name": "single", "metric": "val_error"}}
        context, errors = opened(config=config), iter([3.0, 2.0, 5.0, 4.0])
        Linear(context).train(4, after_epoch=lambda: context.report_validation(error=next(errors)))
        context.close()
        assert checkpoints(tmp_path / "run") == [10, 20]

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_signal_saves_at_the_next_batch(self, number, opened, tmp_path):
        undisturbed = Linear(opened("undisturbed")).train(3)
        count = []

        def interrupt():
            count.append(1)
            if len(count) == 7:
                signal.raise_signal(number)

        with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
            Linear(opened()).train(3, after_batch=interrupt)
        assert len(count) == 7
        trained = []
        assert Linear(opened()).train(3, after_batch=lambda: trained.append(1)) == undisturbed
        assert len(trained) == 3 * STEPS - 7

    def test_exception_leaves_the_last_checkpoint_alone(self, opened, tmp_path):
        undisturbed = Linear(opened("undisturbed")).train(3)
        context, count = opened(), []

        def fail():
            count.append(1)
            if len(count) == 8:
                raise RuntimeError("in the middle of a batch")

        with pytest.raises(RuntimeError), context:
            Linear(context).train(3, after_batch=fail)
        assert checkpoints(tmp_path / "run") == [5]
        assert Linear(opened()).train(3) == undisturbed

    def test_loop_that_is_left_is_saved_at_its_last_batch(self, opened, tmp_path):
        context = opened()
        linear = Linear(context)
        for epoch in context.epochs(5):
            for x, y in context.batches(*arrays(), batch_size=BATCH):
                context.report(loss=linear.step(x, y))
            if epoch == 1:
                break
        context.close()
        assert checkpoints(tmp_path / "run")[-1] == 10

    def test_longer_target_inside_of_an_epoch_gives_the_same_in_one_process_and_in_two(self, opened):
        lengths = [3, 11]

        def train(folder, *wanted):
            context, answers = opened(folder, config=SEARCH), []
            trial = SimpleNamespace(trial_id=None, experiment_id=None)
            context.core.info = SimpleNamespace(trial=trial, latest_checkpoint=None)
            backend = context.core.backend
            backend.current_operation = lambda: Operation(
                wanted[min(len(answers), len(wanted) - 1)], len(answers) >= len(wanted)
            )
            backend.complete_operation = lambda operation, metric: answers.append(metric)
            linear, drawn = Linear(context), tf.Variable(0.0)
            context.track(drawn=drawn)

            def draw():
                drawn.assign_add(tf.random.uniform(()))

            ended = linear.train(9, before=draw, after_epoch=draw)
            return ended, float(drawn), answers

        *together, answers = train("together", *lengths)
        *first, first_answer = train("apart", lengths[0])
        *apart, second_answer = train("apart", lengths[1])
        assert apart == together
        assert [*first_answer, *second_answer] == answers
        assert first != together


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return {
        name: loop_kinds.run(name, folder / name)
        for name in ("several_passes", "supervised", "gan", "tracked_draws")
    }


class TestBodyOfAnEpoch:
    """What the body does before the batches at which a process resumes counts once."""

    @pytest.mark.parametrize(
        ("name", "batches"),
        # Each batch of an epoch: of nine batches in two passes, and of six batches and an evaluation.
        [
            *(("several_passes", 9 + n) for n in range(1, 10)),
            *(("supervised", 6 + n) for n in range(1, 7)),
            ("gan", 8),
            # Of ten batches in three passes, and of five in one.
            *(("tracked_draws", 10 + n) for n in (1, 3, 5, 9)),
            *(("tracked_draws", 20 + n) for n in (1, 3, 7)),
        ],
    )
    def test_process_stopped_after_any_batch_of_an_epoch(self, name, batches, undisturbed, tmp_path):
        with pytest.raises(SystemExit):
            loop_kinds.run(name, tmp_path, batches, signal.SIGTERM)
        # After the last batch of a pass a loop acts when the next pass has begun, or at the end of the epoch.
        stopped = batches + int((name, batches) == ("several_passes", 14))
        assert checkpoints(tmp_path / "run")[-1] == stopped
        resumed = loop_kinds.run(name, tmp_path)
        expected = undisturbed[name]
        assert (resumed["made"], resumed["reports"]) == (expected["made"], expected["reports"])
        assert resumed["batches"] == expected["batches"] - stopped

    def test_script_that_does_not_ask_for_the_batches_is_refused(self, opened):
        context, count = opened(), []
        linear = Linear(context)
        with pytest.raises(SystemExit):
            linear.train(
                2, after_batch=lambda: count.append(1) or (len(count) == 3 and signal.raise_signal(15))
            )
        epochs = iter_epochs(opened())
        next(epochs)
        with pytest.raises(DetError, match="has not asked for them"):
            next(epochs)


def iter_epochs(context):
    Linear(context)
    return context.epochs(2)


SEARCH = {
    "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 11}},
    "min_checkpoint_period": {"batches": 2},
}


class TestMisuse:
    def test_training_inside_of_a_loop(self, opened):
        context = opened()
        linear = Linear(context)
        linear.model.compile("sgd", "mse")
        for _ in context.epochs(1):
            with pytest.raises(ValueError, match=r"`context.fit` was called inside of"):
                context.fit(linear.model, *arrays(), validate=False)
            with pytest.raises(ValueError, match=r"`context.epochs` was called inside of"):
                next(context.epochs(1))

    def test_two_passes_at_once(self, opened):
        context = opened()
        Linear(context)
        for _ in context.epochs(1):
            first, second = (context.batches(*arrays(), batch_size=BATCH) for _ in range(2))
            with pytest.raises(ValueError, match="are still being read"):
                next(zip(first, second, strict=True))

    def test_metric_that_is_not_tracked(self, opened):
        context = opened()
        Linear(context)
        for _ in context.epochs(1):
            for _ in context.batches(*arrays(), batch_size=BATCH):
                with pytest.raises(ValueError, match="The metric `mean` is not tracked"):
                    context.report(mean=keras.metrics.Mean())

    def test_nothing_is_tracked(self, opened):
        with pytest.raises(ValueError, match=r"context.track\(model=model"):
            opened().epochs(3)

    @pytest.mark.parametrize("epochs", [0, -1, 2.5, True, "3"])
    def test_epochs_is_no_number(self, epochs, opened):
        context = opened()
        Linear(context)
        with pytest.raises(ValueError, match="`epochs` must be a whole number"):
            context.epochs(epochs)

    def test_object_without_state(self, opened):
        with pytest.raises(TypeError, match=r"`track\(thing.1=...\)` got a object"):
            opened().track(thing=[tf.Variable(1.0), object()])

    @pytest.mark.parametrize("call", ["report", "report_validation"])
    def test_report_outside_of_a_loop(self, call, opened):
        with pytest.raises(ValueError, match=f"`context.{call}` belongs inside"):
            getattr(opened(), call)(loss=1.0)

    def test_batches_outside_of_a_loop(self, opened):
        with pytest.raises(ValueError, match=r"`context.batches` belongs inside"):
            next(iter(opened().batches(*arrays())))

    def test_tracking_inside_of_a_loop(self, opened):
        context = opened()
        Linear(context)
        for _ in context.epochs(1):
            with pytest.raises(ValueError, match=r"before `for epoch in context.epochs"):
                context.track(late=tf.Variable(1.0))

    def test_optimizer_of_a_model_that_is_not_tracked(self, opened):
        context = opened()
        linear = Linear(context)
        del context._tracked["model"]
        with pytest.raises(ValueError, match="trains `sequential/dense/kernel`, which is not tracked"):
            linear.train(1)

    def test_resume_with_another_batch_size(self, opened):
        context = opened()
        with pytest.raises(KeyboardInterrupt), context:
            Linear(context).train(3, after_epoch=interrupted_at(2))
        context = opened()
        Linear(context)
        epochs = context.epochs(3)
        next(epochs)
        with pytest.raises(ModelMismatchError, match="global batch size of 8, this script asks for 4"):
            list(context.batches(*arrays(), batch_size=4))

    def test_resume_with_other_tracked_objects(self, opened):
        context = opened()
        with pytest.raises(KeyboardInterrupt), context:
            Linear(context).train(3, after_epoch=interrupted_at(2))
        context = opened()
        linear = Linear(context)
        context.track(more=tf.Variable(1.0))
        with pytest.raises(ModelMismatchError, match="tracked objects"):
            linear.train(3)

    def test_virtual_workers(self, opened):
        context = opened()
        Linear(context)
        context.distributed.set_virtual_workers(2)
        with pytest.raises(ValueError, match=r"Virtual workers need `context.fit`"):
            context.epochs(2)
        context.distributed.set_virtual_workers(1)

    def test_random_function_is_named(self, opened, caplog):
        context = opened()
        Linear(context)

        @tf.function
        def noisy():
            return tf.random.shuffle([1.0, 2.0])[0] + tf.random.normal(())

        for _ in context.epochs(1):
            for _ in context.batches(*arrays(), batch_size=BATCH):
                context.report(loss=noisy())
        assert "draws random numbers with `tf.random` ops: `noisy`" in caplog.text

    def test_draws_that_resume_are_not_warned_of(self, opened, caplog):
        context = opened()
        linear, generator = Linear(context), tf.random.Generator.from_seed(1)
        context.track(generator=generator)
        draw = tf.function(
            lambda: generator.normal(()) + keras.random.normal((), seed=3) + tf.random.normal(())
        )
        linear.train(1, after_batch=draw)
        assert "tf.random" not in caplog.text

    def test_periods_of_validations_have_no_effect(self, opened, caplog):
        Linear(opened(config={"min_validation_period": {"batches": 2}})).train(1)
        assert "`min_validation_period` and `perform_initial_validation` have no effect" in caplog.text


def interrupted_at(epochs):
    """Return a function that raises at its call of this number."""
    calls = []

    def interrupt():
        calls.append(1)
        if len(calls) == epochs:
            raise KeyboardInterrupt

    return interrupt
