"""Loops written by hand, of many kinds, on any number of workers.

    python loop_kinds.py FOLDER NAME[:KILL_AFTER]...

Each kind trains in FOLDER/NAME and leaves ``rank-<r>.json`` with what it came to. With a number behind its name, the
process kills itself when so many batches have been trained in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import det_keras as det
from det_keras.keras.context import KerasContext
from det_keras.keras.training.progress import Progress

KINDS: dict[str, Callable[[KerasContext], Any]] = {}
PERIOD = 3
# Of the kinds that this process runs; the last one is that of the current kind.
FOLDERS: list[Path] = []
ROWS, FEATURES, GLOBAL_BATCH = 101, 6, 20


def kind(function: Callable[[KerasContext], Any]) -> Callable[[KerasContext], Any]:
    """Make a loop known by its name."""
    KINDS[function.__name__] = function
    return function


def rows() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.RandomState(0).normal(size=(ROWS, FEATURES)).astype("float32")
    return x, (x.sum(1) > 0).astype("int32")


class Classifier:
    """A model with dropout and moving statistics, its optimizer and metric, and its step."""

    def __init__(self, context: KerasContext, model: keras.Model | None = None) -> None:
        self.model = model or keras.Sequential(
            [
                keras.Input((FEATURES,)),
                layers.Dense(8, activation="relu"),
                layers.BatchNormalization(),
                layers.Dropout(0.3),
                layers.Dense(2),
            ]
        )
        self.optimizer = context.wrap_optimizer(keras.optimizers.Adam(1e-2))
        self.accuracy = keras.metrics.SparseCategoricalAccuracy()
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.step = tf.function(self._step)

    def track(self, context: KerasContext, **more: Any) -> None:
        context.track(model=self.model, optimizer=self.optimizer, accuracy=self.accuracy, **more)

    def _step(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = self.model(x, training=True)
            loss = self.loss(y, logits)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply(gradients, self.model.trainable_variables)
        self.accuracy.update_state(y, logits)
        return loss


@kind
def supervised(context: KerasContext) -> Any:
    x, y = context.wrap_data(*rows())
    trained, batch_size = Classifier(context), context.distributed.shard_batch_size(GLOBAL_BATCH)
    validation = keras.metrics.SparseCategoricalAccuracy()
    trained.track(context, validation=validation)
    for _ in context.epochs(4):
        trained.accuracy.reset_state()
        for batch_x, batch_y in context.batches(x, y, batch_size=batch_size):
            context.report(loss=trained.step(batch_x, batch_y), accuracy=trained.accuracy)
        validation.reset_state()
        for batch_x, batch_y in context.batches(x, y, batch_size=batch_size, training=False):
            validation.update_state(batch_y, trained.model(batch_x))
        context.report_validation(accuracy=validation.result())
    return trained.model, trained.optimizer


@kind
def without_draws(context: KerasContext) -> Any:
    """Arrays and a pipeline whose rows no number of workers divides; nothing is drawn inside of the model."""
    x, y = rows()
    arrays, size = context.wrap_data(x, y), context.distributed.size
    pipeline = context.wrap_data(tf.data.Dataset.from_tensor_slices((x, y)))
    model = keras.Sequential([keras.Input((FEATURES,)), layers.Dense(8, activation="tanh"), layers.Dense(2)])
    trained = Classifier(context, model)
    trained.track(context)
    for _ in context.epochs(3):
        trained.accuracy.reset_state()
        for batch_x, batch_y in context.batches(*arrays, batch_size=GLOBAL_BATCH // size):
            context.report(loss=trained.step(batch_x, batch_y))
        for batch_x, batch_y in context.batches(pipeline.batch(GLOBAL_BATCH // size)):
            context.report(loss=trained.step(batch_x, batch_y), accuracy=trained.accuracy)
        context.report_validation(accuracy=trained.accuracy.result())
    return [trained.model]


@kind
def gan(context: KerasContext) -> Any:
    images = context.wrap_data(rows()[0])
    batch_size = context.distributed.shard_batch_size(GLOBAL_BATCH)
    generator = keras.Sequential(
        [keras.Input((3,)), layers.Dense(8, activation="relu"), layers.Dense(FEATURES)]
    )
    discriminator = keras.Sequential(
        [keras.Input((FEATURES,)), layers.Dense(8, activation="relu"), layers.Dense(1)]
    )
    d_optimizer = context.wrap_optimizer(keras.optimizers.Adam(1e-2))
    g_optimizer = context.wrap_optimizer(keras.optimizers.Adam(1e-2))
    noise, d_loss = keras.random.SeedGenerator(7), keras.metrics.Mean()
    answers = keras.losses.BinaryCrossentropy(from_logits=True)
    context.track(generator=generator, discriminator=discriminator, optimizers=[d_optimizer, g_optimizer])
    context.track(noise=noise, losses={"d": d_loss})

    @tf.function
    def train_discriminator(real: tf.Tensor) -> None:
        fake = generator(keras.random.normal((tf.shape(real)[0], 3), seed=noise))
        with tf.GradientTape() as tape:
            guesses = discriminator(tf.concat([real, fake], 0))
            truth = tf.concat([tf.ones_like(real[:, :1]), tf.zeros_like(fake[:, :1])], 0)
            loss = answers(truth, guesses)
        variables = discriminator.trainable_variables
        d_optimizer.apply(tape.gradient(loss, variables), variables)
        d_loss.update_state(loss)

    @tf.function
    def train_generator(count: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            guesses = discriminator(generator(keras.random.normal((count, 3), seed=noise)))
            loss = answers(tf.ones_like(guesses), guesses)
        variables = generator.trainable_variables
        g_optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    for _ in context.epochs(4):
        d_loss.reset_state()
        for real in context.batches(images, batch_size=batch_size):
            train_discriminator(real)
            context.report(g_loss=train_generator(tf.shape(real)[0]), d_loss=d_loss)
    return generator, discriminator


class Replay:
    """Transitions, from which batches are drawn."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.items = rng, np.zeros((0, 5), "float32")

    def add(self, item: np.ndarray) -> None:
        self.items = np.concatenate([self.items, item[None].astype("float32")])[-200:]

    def sample(self, count: int) -> np.ndarray:
        return self.items[self.rng.integers(0, len(self.items), count)]

    def get_state(self) -> dict[str, Any]:
        return {"items": self.items}

    def load_state(self, state: dict[str, Any]) -> None:
        self.items = state["items"]


@kind
def reinforcement(context: KerasContext) -> Any:
    """A walker learns which way leads to the goal; on several workers each walks by itself."""
    rng = np.random.default_rng(10 + context.distributed.rank)
    replay, explored = Replay(rng), tf.Variable(0, dtype=tf.int64)
    values = keras.Sequential([keras.Input((2,)), layers.Dense(8, activation="tanh"), layers.Dense(2)])
    optimizer = context.wrap_optimizer(keras.optimizers.SGD(0.05))
    context.track(values=values, optimizer=optimizer, replay=replay, rng=rng, explored=explored)

    @tf.function
    def train_step(batch: tf.Tensor) -> tf.Tensor:
        states, actions, rewards = batch[:, :2], tf.cast(batch[:, 2], tf.int32), batch[:, 3]
        with tf.GradientTape() as tape:
            chosen = tf.reduce_sum(values(states) * tf.one_hot(actions, 2), axis=1)
            loss = tf.reduce_mean((rewards - chosen) ** 2)
        gradients = tape.gradient(loss, values.trainable_variables)
        optimizer.apply(gradients, values.trainable_variables)
        return loss

    for _ in context.epochs(8):
        place = rng.normal(size=2)
        for _ in range(5):
            action = rng.integers(2) if rng.random() < 0.4 else int(np.argmax(values(place[None])[0]))
            place = place + 0.1 * (1 if action else -1)
            replay.add(np.array([*place, action, -np.abs(place).sum(), 0.0]))
            explored.assign_add(1)
            context.report(loss=train_step(replay.sample(8)))
    return values, optimizer, np.asarray(explored)


@kind
def several_passes(context: KerasContext) -> Any:
    """Passes by name and by order, of arrays and a pipeline that is made in each epoch, with draws between them."""
    x, y = rows()
    trained = Classifier(context)
    generator, drawn = tf.random.Generator.from_seed(3), tf.Variable(0.0)
    trained.track(context, generator=generator, drawn=drawn)
    for epoch in context.epochs(3):
        order = np.random.permutation(ROWS)
        trained.optimizer.learning_rate = 0.02 / (epoch + 1) * random.random()
        for batch_x, batch_y in context.batches(x, y, batch_size=25, name="arrays"):
            context.report(first=trained.step(batch_x, batch_y))
        drawn.assign_add(generator.normal(()) + random.random() + np.random.random())
        context.report_validation(drawn=drawn)
        pipeline = tf.data.Dataset.from_tensor_slices((x[order], y[order])).shuffle(50).batch(30)
        batches = context.batches(pipeline)
        for batch_x, batch_y in batches:
            if batches.step == 2:
                drawn.assign_add(1.0)
            context.report(second=trained.step(batch_x, batch_y))
    return trained.model, trained.optimizer, np.asarray(drawn)


@kind
def tracked_draws(context: KerasContext) -> Any:
    """Tracked generators draw in the body of an epoch before its batches; some epochs lack some passes."""
    x, y = rows()
    trained = Classifier(context)
    rng, other = np.random.default_rng(3), random.Random(4)
    generator, seeds = tf.random.Generator.from_seed(5), keras.random.SeedGenerator(6)
    trained.track(context, rng=rng, other=other, generator=generator, seeds=seeds)
    for epoch in context.epochs(5):
        trained.accuracy.reset_state()
        order = rng.permutation(ROWS)
        shift = other.random() + generator.normal(()) + keras.random.normal((), seed=seeds)
        if epoch < 2:
            for batch_x, batch_y in context.batches(x[:40], y[:40], batch_size=20, name="warm up"):
                context.report(warm=trained.step(batch_x, batch_y))
        for batch_x, batch_y in context.batches(
            x[order], y[order], batch_size=25, shuffle=False, name="main"
        ):
            context.report(loss=trained.step(batch_x + shift, batch_y), accuracy=trained.accuracy)
            rng.random()
        if epoch in (0, 1, 4):
            for batch_x, batch_y in context.batches(x, y, batch_size=50, name="rare"):
                context.report(rare=trained.step(batch_x, batch_y), rate=trained.optimizer.learning_rate)
                trained.optimizer.learning_rate = 0.9 * trained.optimizer.learning_rate
    return trained.model, trained.optimizer


@kind
def left_early(context: KerasContext) -> Any:
    """Passes that the script leaves before their end, and a loop that it leaves."""
    x, y = rows()
    trained = Classifier(context)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(ROWS).batch(10)
    trained.track(context)
    for epoch in context.epochs(9):
        batches = context.batches(dataset)
        for batch_x, batch_y in batches:
            context.report(loss=trained.step(batch_x, batch_y))
            if batches.step == 4 + epoch:
                break
        if epoch == 3:
            break
    return trained.model, trained.optimizer


class Items(keras.utils.PyDataset):
    """Items that depend on a random stream of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.y = rows()
        self.rng = np.random.default_rng(5)

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        part = slice(index * 16, index * 16 + 16)
        return self.x[part] + self.rng.normal(size=(1, FEATURES)).astype("float32"), self.y[part]


@kind
def pydataset(context: KerasContext) -> Any:
    trained, items = Classifier(context), Items()
    trained.track(context)
    batches = context.batches(items)
    for _ in context.epochs(4):
        for batch_x, batch_y in batches:
            context.report(loss=trained.step(batch_x, batch_y))
    return trained.model, trained.optimizer


def drawn_batches(x: np.ndarray, y: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for _ in range(5):
        chosen = np.random.randint(0, ROWS, 16)
        yield x[chosen], y[chosen]


@kind
def python_generator(context: KerasContext) -> Any:
    """A generator that is made in each epoch, and draws from NumPy."""
    x, y = rows()
    trained = Classifier(context)
    trained.track(context)
    for _ in context.epochs(4):
        for batch_x, batch_y in context.batches(drawn_batches(x, y)):
            context.report(loss=trained.step(batch_x, batch_y))
    return trained.model, trained.optimizer


@keras.saving.register_keras_serializable()
class Lazy(keras.Model):
    """A model that makes its variables when it is called, with a metric and an optimizer of its own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.inner = [layers.Dense(8, activation="relu"), layers.Dropout(0.2), layers.Dense(2)]
        self.seen = keras.metrics.Sum()

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        self.seen.update_state(tf.shape(x)[0])
        for layer in self.inner:
            x = layer(x, training=training) if isinstance(layer, layers.Dropout) else layer(x)
        return x


@kind
def built_when_called(context: KerasContext) -> Any:
    x, y = rows()
    trained = Classifier(context, Lazy())
    trained.track(context)
    for _ in context.epochs(4):
        for batch_x, batch_y in context.batches(x, y, batch_size=16, shuffle=False):
            context.report(loss=trained.step(batch_x, batch_y), seen=trained.model.seen)
    return trained.model, trained.optimizer


@kind
def compiled_model(context: KerasContext) -> Any:
    """`train_on_batch` of a compiled model."""
    x, y = rows()
    model = Classifier(context).model
    model.compile(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    # Only then its metrics have variables, which a resumed process needs.
    model.test_on_batch(x[:1], y[:1])
    context.track(model=model)
    for _ in context.epochs(4):
        model.reset_metrics()
        # Batches of one size: `train_on_batch` is traced for shapes in the order in which they come.
        for batch_x, batch_y in context.batches(x[:96], y[:96], batch_size=16):
            context.report(**model.train_on_batch(batch_x, batch_y, return_dict=True))
    return model, model.optimizer


@kind
def two_loops_and_a_fit(context: KerasContext) -> Any:
    """Three trainings of one script; the first loop is left with `break`."""
    x, y = rows()
    trained = Classifier(context)
    trained.track(context)
    for epoch in context.epochs(5):
        for batch_x, batch_y in context.batches(x, y, batch_size=25):
            context.report(loss=trained.step(batch_x, batch_y))
        if epoch == 1:
            break
    # Another loop follows at once, with an optimizer that is wrapped in between.
    second = context.wrap_optimizer(keras.optimizers.SGD(0.01, momentum=0.9))
    trained.optimizer, trained.step = second, tf.function(trained._step)
    context.track(optimizer=second)
    for _ in context.epochs(1):
        for batch_x, batch_y in context.batches(x, y, batch_size=25):
            context.report(loss=trained.step(batch_x, batch_y))
    fine = context.wrap_optimizer(keras.optimizers.SGD(0.01))
    trained.model.compile(optimizer=fine, loss=trained.loss)
    history = context.fit(trained.model, x, y, batch_size=25, epochs=2, verbose=0, validate=False)
    trained.optimizer = context.wrap_optimizer(keras.optimizers.RMSprop(1e-3))
    trained.step = tf.function(trained._step)
    trained.track(context)
    for _ in context.epochs(2):
        for batch_x, batch_y in context.batches(x, y, batch_size=25):
            context.report(loss=trained.step(batch_x, batch_y))
    return trained.model, trained.optimizer, history.history


class LeftError(Exception):
    """Leaves a loop."""


def endless(x: np.ndarray, y: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(9)
    while True:
        chosen = rng.integers(0, ROWS, size)
        yield x[chosen], y[chosen]


@kind
def untracked(context: KerasContext) -> Any:
    """State that nothing lists: variables of a step, containers, a file, a stream, a loop that an exception leaves."""
    x, y = context.wrap_data(*rows())
    size = GLOBAL_BATCH // context.distributed.size
    trained = Classifier(context)
    trained.track(context)
    counter, held = tf.Variable(0.0), [tf.Variable(float(context.distributed.rank))]
    seen, best, table = [], {"loss": np.inf, "waited": 0}, np.zeros(4)
    rng, spread = np.random.default_rng(3), keras.random.SeedGenerator(4)
    file = FOLDERS[-1] / f"log-{context.distributed.rank}.txt"

    @tf.function
    def step(batch_x: tf.Tensor, batch_y: tf.Tensor) -> tf.Tensor:
        counter.assign_add(1.0)
        held[0].assign_add(tf.reduce_mean(batch_x))
        return trained.step(batch_x + 0.1 * held[0], batch_y) * counter

    def train(epochs: int, *data: Any, **options: Any) -> None:
        for epoch in context.epochs(epochs):
            shift = rng.normal() + keras.random.normal((), seed=spread)
            for batch_x, batch_y in context.batches(*data, **options):
                loss = step(batch_x + shift, batch_y)
                context.report(loss=loss)
                seen.append(float(loss))
                table[int(len(seen) % 4)] += seen[-1]
                if len(seen) == 13:
                    raise LeftError(seen[-1])
            best["waited"] = 0 if seen[-1] < best["loss"] else best["waited"] + 1
            best["loss"] = min(best["loss"], seen[-1])
            with file.open("a") as lines:
                lines.write(f"{epoch} {best}\n")

    left = 0.0
    try:
        train(9, x, y, batch_size=size)
    except LeftError as error:
        left = error.args[0]
        trained.optimizer.learning_rate = 0.5 * trained.optimizer.learning_rate
    texts = [file.read_text() if context.distributed.is_chief else ""]
    if context.distributed.size > 1:
        train(2, x, y, batch_size=size)
    else:
        # Both loops read the same generator.
        stream = endless(x, y, size)
        train(2, stream, steps_per_epoch=5)
        train(2, stream, steps_per_epoch=5)
    texts.append(file.read_text() if context.distributed.is_chief else "")
    text = np.frombuffer("".join(texts).encode(), np.uint8)
    numbers = np.array([left, *seen, *best.values(), float(counter), float(held[0])])
    return trained.model, trained.optimizer, numbers, table, text


class Noisy:
    """A model with a step that draws with TensorFlow's random ops, and makes a variable when it is first called."""

    def __init__(self, context: KerasContext) -> None:
        self.model = keras.Sequential([keras.Input((FEATURES,)), layers.Dense(4), layers.Dense(FEATURES)])
        self.optimizer = context.wrap_optimizer(keras.optimizers.Adam(1e-2))
        self.factor: Any = None

    @tf.function
    def train_step(self, x: tf.Tensor) -> tf.Tensor:
        if self.factor is None:
            self.factor = tf.Variable(tf.random.uniform([FEATURES], 0.5, 1.5), trainable=False)
        noise = tf.zeros_like(x)
        for _ in tf.range(2):
            noise += tf.random.normal(tf.shape(x), stddev=0.3)
        with tf.GradientTape() as tape:
            copied = self.model(tf.nn.dropout(x * self.factor + noise, 0.2))
            loss = tf.reduce_mean((copied - x) ** 2)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply(gradients, self.model.trainable_variables)
        return loss

    @tf.function
    def measure(self, x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean((self.model(x + tf.random.normal(tf.shape(x))) - x) ** 2)


@tf.function
def drawn_shift() -> tf.Tensor:
    return tf.random.truncated_normal([FEATURES], stddev=0.1)


def train_noisy(context: KerasContext, noisy: Noisy, x: np.ndarray, epochs: int) -> None:
    """Train in one loop; the last batch of an epoch is smaller, for which the step is traced again."""
    batch_size = context.distributed.shard_batch_size(GLOBAL_BATCH)
    for _ in context.epochs(epochs):
        shift = drawn_shift()
        for batch in context.batches(x, batch_size=batch_size):
            context.report(loss=noisy.train_step(batch + shift))
        context.report_validation(loss=noisy.measure(x))


@kind
def random_ops(context: KerasContext) -> Any:
    """A model that is trained again and evaluated in between, and models that are made anew, as folds are."""
    x, folds, losses = context.wrap_data(rows()[0]), [], []
    for fold in range(2):
        noisy = Noisy(context)
        context.track(**{f"model_{fold}": noisy.model, f"optimizer_{fold}": noisy.optimizer})
        train_noisy(context, noisy, x, 2)
        losses.append(noisy.measure(x))
        folds.append(noisy)
    train_noisy(context, folds[0], x, 1)
    return [*(noisy.model for noisy in folds), np.array(losses)]


def run(
    name: str, folder: Path, kill_after: int | None = None, number: int = signal.SIGKILL
) -> dict[str, Any]:
    """Train in a folder, and return what the training came to: digests of what it made, and its reports.

    Args:
        name: of the kind.
        folder: of the run.
        kill_after: number of batches of this process after which it sends itself a signal.
        number: the signal.
    """
    trained = {"batches": 0}
    advance = Progress.advance

    def counted(progress: Progress) -> None:
        advance(progress)
        trained["batches"] += 1
        if trained["batches"] == kill_after:
            os.kill(os.getpid(), number)

    Progress.advance = counted
    config = {
        "min_checkpoint_period": {"batches": PERIOD},
        "scheduling_unit": 4,
        "optimizations": {"divergence_check_period": 5},
    }
    FOLDERS.append(folder)
    # A process has one seed; the kinds that it runs one after another begin with the same streams.
    keras.backend.clear_session()
    try:
        with det.keras.init(run_dir=folder / "run", seed=11, config=config) as context:
            made = KINDS[name](context)
    finally:
        Progress.advance = advance
    lines = (
        (folder / "run" / "metrics.jsonl").read_text().splitlines() if context.distributed.is_chief else []
    )
    reports = [{key: value for key, value in json.loads(line).items() if key != "time"} for line in lines]
    weights = [digest(thing.weights) for thing in made if isinstance(thing, keras.Model)]
    numbers = [weight.tolist() for weight in made[0].get_weights()]
    return {
        "made": [digest(thing) for thing in made],
        "weights": weights,
        "numbers": numbers,
        "reports": reports,
        **trained,
    }


def make_deterministic() -> None:
    """Make TensorFlow deterministic in this process, until it ends: its pipelines then read no batch ahead."""
    tf.config.experimental.enable_op_determinism()


def digest(thing: Any) -> str:
    if isinstance(thing, keras.Model | keras.optimizers.Optimizer):
        values = [np.asarray(variable.value) for variable in thing.variables]
    elif isinstance(thing, dict):
        values = [np.asarray(thing[name]) for name in sorted(thing)]
    elif isinstance(thing, list):
        values = [np.asarray(variable.value) for variable in thing]
    else:
        values = [np.asarray(thing)]
    return hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()[:16]


def main(folder: Path, *stories: str) -> None:
    """Train some kinds, one after another; those that have ended in an earlier process are left out."""
    rank = int(os.environ.get("HOROVOD_RANK", "0"))
    make_deterministic()
    for story in stories:
        name, _, kill_after = story.partition(":")
        found = folder / name / f"rank-{rank}.json"
        if found.exists():
            continue
        (folder / name).mkdir(parents=True, exist_ok=True)
        result = run(name, folder / name, int(kill_after) if kill_after else None)
        found.write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
