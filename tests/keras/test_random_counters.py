"""Random ops of traced functions draw what TensorFlow's kernels draw, and their states can be saved."""

from __future__ import annotations

import contextlib
import gc
import json
import logging

import keras
import pytest
import tensorflow as tf
from warm import ForkServer
from ways import WAYS, arrays, blurred

import det_keras as det
from det_keras.keras.random_ops.counters import RandomCounters, random_counters

SEED = 7


@contextlib.contextmanager
def replacing():
    """Replace ops inside the block, with counters of its own."""
    counters = RandomCounters()
    counters.install()
    try:
        yield counters
    finally:
        counters.remove()


def drawn(make, *calls):
    """Return what a fresh function gives for each of some calls."""
    keras.utils.set_random_seed(SEED)
    function = tf.function(make)
    return [tf.nest.map_structure(lambda part: part.numpy(), function(*call)) for call in calls]


def assert_same(one, other):
    found, expected = tf.nest.flatten(one), tf.nest.flatten(other)
    assert len(found) == len(expected)
    for left, right in zip(found, expected, strict=True):
        assert left.dtype == right.dtype
        assert left.tobytes() == right.tobytes()


def ops_in(function, *arguments):
    graph = function.get_concrete_function(*arguments).graph.as_graph_def()
    nodes = [*graph.node, *(node for inner in graph.library.function for node in inner.node_def)]
    return {node.op for node in nodes}


def assert_like_plain(make, *calls, is_replaced=True):
    plain = drawn(make, *calls)
    with replacing() as counters:
        before = len(counters.counters())
        kept = tf.function(make)
        tf.random.set_seed(SEED)
        kept.get_concrete_function(*calls[0])
        assert (len(counters.counters()) > before) == is_replaced
        assert_same(drawn(make, *calls), plain)


FLOATS = [tf.float32, tf.float64, tf.float16, tf.bfloat16]
KINDS = {
    **{
        f"normal {dtype.name}": lambda shape, dtype=dtype: tf.random.normal(shape, 1, 2, dtype)
        for dtype in FLOATS
    },
    **{
        f"uniform {dtype.name}": lambda shape, dtype=dtype: tf.random.uniform(shape, -1, 1, dtype)
        for dtype in FLOATS
    },
    **{
        f"truncated {dtype.name}": lambda shape, dtype=dtype: tf.random.truncated_normal(shape, 1, 2, dtype)
        for dtype in FLOATS
    },
    "int32": lambda shape: tf.random.uniform(shape, -5, 2**31 - 1, tf.int32),
    "int64": lambda shape: tf.random.uniform(shape, 3, 1003, tf.int64),
    "seeded": lambda shape: tf.random.normal(shape, seed=5),
    "gamma float32": lambda shape: tf.random.gamma(shape, [0.3, 2.5], [1.0, 2.0]),
    "gamma float64": lambda shape: tf.random.gamma(shape, 1.5, dtype=tf.float64),
}
SHAPES = [
    (),
    (0,),
    (1,),
    (3,),
    (4,),
    (5,),
    (255,),
    (257,),
    (3, 0, 2),
    (7, 11, 13),
    (100_003,),
    (2,),
    (64, 64),
]


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_those_of_the_kernel_for_shapes_known_when_it_runs(kind):
    def draw(shape):
        return KINDS[kind](shape)

    draw = tf.autograph.experimental.do_not_convert(draw)
    signature = [tf.TensorSpec([None], tf.int32)]

    def run():
        tf.random.set_seed(SEED)
        function = tf.function(draw, input_signature=signature)
        return [function(tf.constant(shape, tf.int32)).numpy() for shape in SHAPES * 2]

    plain = run()
    with replacing():
        assert_same(run(), plain)


@pytest.mark.parametrize("kind", ["normal float32", "truncated float16", "int32", "gamma float32"])
def test_numbers_are_those_of_the_kernel_after_thousands_of_calls(kind):
    assert_like_plain(lambda: KINDS[kind]([3]), *[()] * 3000)


def everything(count, shape):
    """Draw with each op of TensorFlow, between those that are replaced also with those that are not."""
    alpha = tf.stack([1.5, 0.5])
    with tf.GradientTape() as tape:
        tape.watch(alpha)
        gamma = tf.random.gamma([3], alpha, beta=2.0)
        total = tf.reduce_sum(gamma**2)
    return [
        tf.random.normal([3, count]),
        tf.random.shuffle(tf.range(9)),
        tf.random.uniform(shape, -1, 1),
        tf.random.categorical(tf.zeros([1, 10]), 7),
        tf.random.uniform([], 0, 100, tf.int64),
        tf.random.poisson([3], [1.0, 2.0]),
        gamma,
        tape.gradient(total, alpha),
        tf.nn.dropout(tf.ones([20]), 0.5),
        tf.nn.experimental.stateless_dropout(tf.ones([20]), 0.5, seed=[1, 2]),
        tf.image.random_flip_left_right(tf.reshape(tf.range(24.0), (2, 2, 3, 2))),
        tf.image.random_brightness(tf.zeros([2, 2, 3]), 0.5),
        tf.cond(count > 1, lambda: tf.random.normal([2]), lambda: tf.zeros([2])),
        tf.keras.initializers.GlorotUniform()((3, 3)),
        keras.initializers.RandomNormal(seed=3)((3, 3)),
        tf.random.truncated_normal([4]),
        tf.random.shuffle(tf.range(9)),
    ]


def test_ops_that_are_not_replaced_keep_their_seeds():
    calls = [(tf.constant(i % 4), tf.constant([i, 2])) for i in range(6)]
    assert_like_plain(everything, *calls)
    with replacing():
        tf.random.set_seed(SEED)
        found = ops_in(tf.function(everything), *calls[0])
    assert {"RandomShuffle", "Multinomial", "RandomPoissonV2"} <= found
    assert not found & {
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
        "RandomGamma",
    }


def test_loops_and_branches_draw_in_order():
    @tf.autograph.experimental.do_not_convert
    def branches(count):
        def body(index, array):
            value = tf.cond(index % 3 == 0, lambda: tf.random.normal([2]), lambda: tf.random.uniform([2]))
            return index + 1, array.write(index, value)

        array = tf.TensorArray(tf.float32, count)
        # A kernel has this order only if the iterations do not overlap.
        return tf.while_loop(lambda index, _: index < count, body, (0, array), parallel_iterations=1)[
            1
        ].stack()

    assert_like_plain(branches, *[(tf.constant(400),)] * 2)


def test_overlapping_iterations_draw_in_order():
    @tf.autograph.experimental.do_not_convert
    def loop(count, parallel):
        def body(index, array):
            return index + 1, array.write(index, tf.random.normal([2]))

        array = tf.TensorArray(tf.float32, count)
        ends = tf.while_loop(lambda index, _: index < count, body, (0, array), parallel_iterations=parallel)
        return ends[1].stack()

    with replacing():
        one, many = (drawn(loop, *[(tf.constant(3000), parallel)] * 2) for parallel in (1, 10))
    assert_same(many, one)


def test_gradients_go_through_loops_and_own_gradients():
    @tf.custom_gradient
    def scaled(x):
        noise = tf.random.normal([2])
        return x * noise, lambda upstream: upstream * noise * 2

    @tf.autograph.experimental.do_not_convert
    def draw(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            _, y = tf.while_loop(
                lambda index, _: index < 4,
                lambda index, y: (index + 1, y * tf.random.normal([2])),
                (0, x),
                parallel_iterations=1,
            )
            total = tf.reduce_sum(scaled(y) + tf.recompute_grad(lambda z: z * tf.random.uniform([2]))(y))
        return tape.gradient(total, x)

    assert_like_plain(draw, *[(tf.ones([2]),)] * 3)


def test_variable_of_a_function_has_the_same_first_value():
    def run(draw):
        tf.random.set_seed(SEED)

        class Lazy:
            value = None

            @tf.function
            def call(self):
                if self.value is None:
                    self.value = tf.Variable(draw())
                return self.value + draw()

        lazy = Lazy()
        return [*(lazy.call().numpy() for _ in range(3)), lazy.value.numpy()]

    for draw in (lambda: tf.random.normal([2]), lambda: tf.random.uniform([2], 0, 9, tf.int32)):
        plain = run(draw)
        with replacing():
            assert_same(run(draw), plain)


def in_two_places():
    inner = tf.function(lambda: tf.random.normal([2]))
    return inner() + inner()


def vectorized():
    return tf.vectorized_map(lambda i: tf.random.normal([2]) + tf.cast(i, tf.float32), tf.range(3))


def in_a_pipeline():
    return next(iter(tf.data.Dataset.range(3).map(lambda _: tf.random.normal([2]))))


def in_python():
    return tf.py_function(lambda: tf.random.normal([2]), [], tf.float32)


@pytest.mark.parametrize("make", [in_two_places, vectorized, in_a_pipeline, in_python])
def test_op_with_several_places_or_none_is_kept(make):
    assert_like_plain(make, (), (), is_replaced=False)


def test_op_that_xla_compiles_is_kept():
    tf.random.set_seed(SEED)
    with replacing():
        function = tf.function(lambda: tf.random.normal([2]), jit_compile=True)
        assert "RandomStandardNormal" in ops_in(function)


def test_op_outside_of_functions_is_kept():
    tf.random.set_seed(SEED)
    expected = [tf.random.normal([2]).numpy() for _ in range(2)]
    with replacing() as counters:
        tf.random.set_seed(SEED)
        assert_same([tf.random.normal([2]).numpy() for _ in range(2)], expected)
        with tf.Graph().as_default() as graph:
            tf.random.normal([2], seed=1)
        assert "RandomStandardNormal" in {op.type for op in graph.get_operations()}
        wrapped = tf.compat.v1.wrap_function(lambda: tf.random.normal([2], seed=1), [])
        assert "RandomStandardNormal" in {op.type for op in wrapped.graph.get_operations()}
        blurred()
        assert counters.counters() == []


def test_steps_that_keras_has_several_times_in_a_loop_are_kept():
    def train():
        keras.utils.set_random_seed(SEED)
        model = blurred(steps_per_execution=4)
        model.unrolled_steps_per_execution = 2
        model.fit(*arrays(), batch_size=4, epochs=2, shuffle=False, verbose=0)
        return [weight.numpy() for weight in model.weights]

    plain = train()
    with replacing() as counters:
        assert_same(train(), plain)
        assert counters.counters() == []


@pytest.mark.parametrize("reset", [lambda: tf.random.set_seed(99), keras.utils.clear_session])
def test_what_discards_kernels_lets_counters_begin_anew(reset):
    def run():
        tf.random.set_seed(SEED)
        function = tf.function(lambda: tf.random.normal([2]))
        values = [function().numpy() for _ in range(2)]
        reset()
        return [*values, function().numpy()]

    plain = run()
    with replacing():
        assert_same(run(), plain)
    assert_same(plain[2], plain[0])


def test_traces_end_with_their_function():
    with replacing() as counters:
        drawn(lambda: tf.random.normal([2]), ())
        gc.collect()
        assert counters.counters() == []


def test_function_outlives_the_replacement():
    tf.random.set_seed(SEED)
    plain = drawn(lambda: tf.random.normal([2]), *[()] * 3)
    tf.random.set_seed(SEED)
    function = tf.function(lambda: tf.random.normal([2]))
    with replacing():
        values = [function().numpy()]
    gc.collect()
    assert_same([*values, function().numpy(), function().numpy()], plain)


class Drawing(tf.Module):
    def __init__(self):
        self.scale = tf.Variable(2.0)

    @tf.function
    def draw(self, shape):
        return tf.random.normal(shape) * self.scale


@pytest.mark.parametrize("is_signature", [False, True], ids=["function", "signature"])
def test_exported_function_draws_from_its_begin_as_one_with_kernels(tmp_path, is_signature):
    def run(directory):
        tf.random.set_seed(SEED)
        module, shape = Drawing(), tf.constant([3])
        draw = module.draw.get_concrete_function(shape)
        values = [draw(shape).numpy() for _ in range(2)]
        tf.saved_model.save(module, directory, signatures=draw if is_signature else None)
        loaded = tf.saved_model.load(directory)
        served = (
            loaded.signatures["serving_default"]
            if is_signature
            else lambda shape: {"output_0": loaded.draw(shape)}
        )
        return [*values, draw(shape).numpy(), *(served(shape)["output_0"].numpy() for _ in range(2))]

    plain = run(str(tmp_path / "plain"))
    with replacing():
        assert_same(run(str(tmp_path / "replaced")), plain)
    assert_same(plain[3:], plain[:2])


def test_export_does_not_hide_the_state_of_the_function(tmp_path, processes):
    tf.random.set_seed(SEED)
    module, counters = Drawing(), processes()
    module.draw(tf.constant([3])), module.draw(tf.constant([3]))
    tf.saved_model.save(module, str(tmp_path))
    state = counters.get_state()
    expected = module.draw(tf.constant([3])).numpy()
    counters.remove()
    module, counters = Drawing(), processes()
    counters.restore(state)
    assert_same(module.draw(tf.constant([3])).numpy(), expected)


def test_keras_model_is_exported(tmp_path):
    with replacing():
        keras.utils.set_random_seed(SEED)
        model = blurred()
        model.fit(*arrays(), verbose=0)
        model.export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    assert loaded.serve(tf.ones((2, 6))).shape == (2, 2)


def function_named(name):
    def draw():
        return tf.random.normal([2])

    draw.__name__ = name
    return tf.function(draw)


@pytest.fixture
def processes():
    """Return a function that gives counters, as those of a new process."""
    opened = []

    def begin():
        counters = RandomCounters()
        counters.install()
        opened.append(counters)
        return counters

    yield begin
    for counters in opened[::-1]:
        counters.remove()


def saved(counters):
    """Return the state of one process, and end it."""
    state = json.loads(json.dumps(counters.get_state()))
    counters.remove()
    return state


def test_state_waits_for_the_trace_in_another_process(processes):
    tf.random.set_seed(SEED)
    function, counters = function_named("step"), processes()
    expected = [function().numpy() for _ in range(5)]
    function, _ = function_named("step"), counters.remove()
    counters = processes()
    function(), function()
    state = saved(counters)
    # The next process is killed before it has traced the function.
    counters = processes()
    counters.restore(state)
    state = saved(counters)
    function, counters = function_named("step"), processes()
    counters.restore(state)
    assert_same([function().numpy() for _ in range(3)], expected[2:])


def test_state_of_a_finished_training_is_not_that_of_a_function_made_since(processes):
    tf.random.set_seed(SEED)
    function, counters = function_named("step"), processes()
    expected = [function().numpy() for _ in range(2)]
    state = saved(counters)
    kept, counters = function_named("step"), processes()
    counters.restore(state, is_end=True)
    made = function_named("step")
    assert_same(made().numpy(), expected[0])
    with pytest.raises(AssertionError):
        assert_same(kept().numpy(), expected[0])


def test_function_that_the_training_used_is_found_among_others_of_its_name(processes):
    tf.random.set_seed(SEED)
    first, second, counters = function_named("step"), function_named("step"), processes()
    first(), first(), first()
    counters.begin_training()
    second()
    expected, state = [*(second().numpy() for _ in range(2)), first().numpy()], None
    first, second, counters = function_named("step"), function_named("step"), processes()
    first(), first(), first()
    counters.begin_training()
    second()
    state = saved(counters)
    first, second, counters = function_named("step"), function_named("step"), processes()
    counters.restore(state)
    assert_same([*(second().numpy() for _ in range(2)), first().numpy()], expected)


def test_function_does_not_take_the_state_of_another_one_for_other_arguments(processes):
    def draw(x):
        return x + tf.random.normal(tf.shape(x))

    long, short = tf.zeros([4]), tf.zeros([3])
    tf.random.set_seed(SEED)
    functions, counters = [tf.function(draw), tf.function(draw)], processes()
    functions[0](long), functions[0](short)
    counters.begin_training()
    functions[1](long)
    state = counters.get_state()
    expected = [functions[1](short), functions[1](long), functions[0](short), functions[0](long)]
    counters.remove()
    functions, counters = [tf.function(draw), tf.function(draw)], processes()
    counters.restore(state)
    found = [functions[1](short), functions[1](long), functions[0](short), functions[0](long)]
    assert_same([value.numpy() for value in found], [value.numpy() for value in expected])


def test_function_that_was_called_before_the_restore_gets_all_its_states(processes):
    def draw(x):
        return x + tf.random.normal(tf.shape(x))

    def warm_up():
        function = tf.function(draw)
        function(tf.zeros([4])), function(tf.zeros([3]))
        return function

    tf.random.set_seed(SEED)
    counters = processes()
    function = warm_up()
    function(tf.zeros([4]))
    state = counters.get_state()
    expected = [function(tf.zeros([size])).numpy() for size in (4, 3, 2)]
    counters.remove()
    counters = processes()
    function = warm_up()
    counters.restore(state)
    assert_same([function(tf.zeros([size])).numpy() for size in (4, 3, 2)], expected)


def test_process_restores_its_own_state(processes):
    tf.random.set_seed(SEED)
    first, second, counters = function_named("step"), function_named("step"), processes()
    first(), second(), second()
    state = counters.get_state()
    expected = [first().numpy(), second().numpy()]
    counters.restore(state)
    assert_same([first().numpy(), second().numpy()], expected)


def test_counters_have_names_in_a_fixed_order():
    with replacing() as counters:
        tf.random.set_seed(SEED)
        function = tf.function(everything)
        function(tf.constant(1), tf.constant([1, 2]))
        names = [name for name, _ in counters.counters()]
        variables = [variable for _, variable in counters.counters()]
        assert [name.split("/")[0] for name in names] == ["everything"] * len(names)
        assert [name.rsplit("/", 2)[1] for name in names][:2] == ["random_gamma", "random_standard_normal"]
        used = function.get_concrete_function(tf.constant(1), tf.constant([1, 2])).variables
        assert {id(variable) for variable in variables} <= {id(variable) for variable in used}


def test_open_context_replaces(tmp_path):
    assert not random_counters.is_installed
    with det.keras.init(run_dir=tmp_path / "run", seed=1):
        assert random_counters.is_installed
    assert not random_counters.is_installed


def is_replacing(send, run_dir, virtual_workers):
    with det.keras.init(run_dir=run_dir, seed=1, virtual_workers=virtual_workers):
        return {"is_installed": random_counters.is_installed}


@pytest.mark.process
@pytest.mark.parametrize(("virtual_workers", "is_installed"), [(None, True), (2, False)])
def test_virtual_workers_keep_the_kernels(tmp_path, virtual_workers, is_installed):
    # In a process of its own: TensorFlow must not have started.
    found = ForkServer().run(
        "virtual", tmp_path / "log.txt", is_replacing, str(tmp_path / "run"), virtual_workers
    )
    assert found["is_installed"] == is_installed


@pytest.mark.parametrize("name", [name for name in WAYS if name.startswith("random_")])
def test_nothing_is_logged_about_ops_that_resume(tmp_path, caplog, name):
    keras.backend.clear_session(free_memory=False)
    with det.keras.init(run_dir=tmp_path / "run", seed=1) as context:
        WAYS[name](context)
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [text for text in told if "tf.random" in text] == []


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_states_of_the_steps_of_a_model_are_apart_from_others(is_wrapped):
    model, (x, y) = blurred(), arrays()
    with replacing() as counters:
        if is_wrapped:
            model.make_train_function()
            step = model.train_function
            model.train_function = lambda iterator: step(iterator)
        model.fit(x, y, validation_data=(x, y), epochs=1, verbose=0)
        state = counters.get_state(model)
        model.compile("sgd", "mse")
        without = counters.get_state(model)
    assert {name: len(entries) for name, entries in state["steps"].items()} == {"train": 1, "test": 1}
    assert without["steps"] == {}
