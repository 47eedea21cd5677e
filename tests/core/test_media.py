"""Media: what becomes of the values that a script logs, and how it is stored beside its training."""

from __future__ import annotations

import json
import re
import struct
import sys
import threading
import time
import types
import zlib

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from det_keras.core.backend.local import LocalBackend, RunDirectory
from det_keras.core.media import store as media_store
from det_keras.core.media.charts import confusion_matrix_content, histogram_content
from det_keras.core.media.content import figure_content, file_content, text_content
from det_keras.core.media.images import image_content
from det_keras.core.media.store import MediaStore
from det_keras.core.media.tables import table_content
from det_keras.errors import MasterError
from det_keras.protocol.media import EXTENSIONS, download_name, file_name, is_file_of
from det_keras.storage import DirectoryStorage
from det_keras.storage.names import is_relative

GENERATOR = np.random.default_rng(7)
HEADS = {
    "png": b"\x89PNG\r\n\x1a\n",
    "jpg": b"\xff\xd8\xff\xe0",
    "gif": b"GIF89a",
    "webp": b"RIFF\x10\0\0\0WEBPVP8 ",
}


def decoded(content: bytes) -> np.ndarray:
    """Return the pixels of a PNG of 8 bits whose rows have the filter `none`, by its specification."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    place, chunks = 8, {}
    while place < len(content):
        length, kind = struct.unpack(">I4s", content[place : place + 8])
        data = content[place + 8 : place + 8 + length]
        (crc,) = struct.unpack(">I", content[place + 8 + length : place + 12 + length])
        assert crc == zlib.crc32(kind + data)
        chunks[kind] = data
        place += 12 + length
    width, height, depth, color, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (depth, rest) == (8, [0, 0, 0])
    channels = {0: 1, 2: 3, 6: 4}[color]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + width * channels)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, channels)


def value_of(content):
    return json.loads(content.encode())


# --- Images.


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1), (5, 7, 3), (5, 7, 4), (1, 1, 3)], ids=str)
def test_image_is_stored_exactly(shape):
    pixels = GENERATOR.integers(0, 256, shape, np.uint8)
    np.testing.assert_array_equal(decoded(image_content(pixels).encode()), pixels.reshape(*shape[:2], -1))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_from_0_to_1_are_scaled(dtype):
    values = np.array([[0.0, 0.25, 0.5, 1.0]], dtype)
    assert decoded(image_content(values).encode()).ravel().tolist() == [0, 64, 128, 255]


def test_truth_values_are_black_and_white_and_nan_is_black():
    assert decoded(image_content(np.array([[False, True]])).encode()).ravel().tolist() == [0, 255]
    assert decoded(image_content(np.array([[np.nan, 1.0]])).encode()).ravel().tolist() == [0, 255]


def test_image_is_that_of_the_call_though_the_array_changes_later():
    pixels = np.zeros((2, 2), np.uint8)
    content = image_content(pixels)
    pixels[:] = 9
    assert not decoded(content.encode()).any()


@pytest.mark.parametrize("count", [1, 3, 64, 100])
def test_batch_becomes_a_grid_of_at_most_64(count):
    images = GENERATOR.integers(1, 256, (count, 4, 5, 3), np.uint8)
    grid = decoded(image_content(images).encode())
    shown = min(count, 64)
    columns = int(np.ceil(np.sqrt(shown)))
    tiles = [
        grid[row : row + 4, column : column + 5]
        for row in range(0, grid.shape[0], 6)
        for column in range(0, grid.shape[1], 7)
    ]
    assert grid.shape[1] == columns * 7 - 2
    for tile, image in zip(tiles[:shown], images, strict=False):
        np.testing.assert_array_equal(tile, image)
    assert not any(tile.any() for tile in tiles[shown:])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.zeros((4, 4, 2), np.uint8), r"Received the shape \(4, 4, 2\)"),
        (np.zeros(4, np.uint8), r"Received the shape \(4,\)"),
        (np.zeros((0, 4), np.uint8), "no empty axis"),
        (np.zeros((4, 4), np.int64), "Received int64"),
        (np.full((4, 4), 255.0), "Received 0 to 255"),
        (np.full((4, 4), -1.0), "Received -1 to 0"),
        (np.array([["a"]]), "Received str"),
        ("nowhere.png", "cannot be logged: No such file"),
    ],
    ids=["channels", "axes", "empty", "integers", "0 to 255", "-1 to 1", "texts", "no file"],
)
def test_value_that_is_no_image_is_refused_with_what_it_is(value, said):
    with pytest.raises(ValueError, match=said):
        image_content(value)


@pytest.mark.parametrize("extension", HEADS)
def test_format_of_a_file_is_known_by_its_first_bytes(tmp_path, extension):
    path = tmp_path / "image.svg"
    path.write_bytes(HEADS[extension] + b"rest")
    content = image_content(path)
    assert (content.extension, content.encode()) == (extension, HEADS[extension] + b"rest")


@pytest.mark.parametrize(
    "text", ["<svg xmlns='http://www.w3.org/2000/svg'/>", "<?xml version='1.0'?><svg/>", "<script>", ""]
)
def test_svg_and_html_are_no_images(tmp_path, text):
    path = tmp_path / "image.png"
    path.write_text(text)
    with pytest.raises(ValueError, match="Use `log_file`"):
        image_content(str(path))


def in_library(name: str, **members: object) -> object:
    """Return an object whose class comes from a library that is not installed here."""
    return type("Thing", (), {**members, "__module__": f"{name}.things"})()


@pytest.mark.parametrize(("mode", "saved"), [("RGB", "RGB"), ("CMYK", "converted")])
def test_image_of_pil_saves_itself(mode, saved):
    def save(self, file, format):  # noqa: A002 - a word of PIL
        file.write(f"{format} {self.mode}".encode())

    converted = in_library("PIL", mode="converted", save=save)
    image = in_library("PIL", mode=mode, save=save, convert=lambda self, mode: converted)
    assert image_content(image).encode() == f"PNG {saved}".encode()


# --- Figures, texts, files.


def test_figure_of_plotly_is_its_json():
    go = pytest.importorskip("plotly.graph_objects")
    figure = go.Figure(go.Scatter(x=[1, 2], y=[3, 4]))
    content = figure_content(figure)
    assert content.extension == "json"
    assert value_of(content) == json.loads(figure.to_json())


def test_figure_of_matplotlib_and_its_axes_are_png():
    def savefig(self, file, format):  # noqa: A002
        file.write(HEADS[format])

    figure = in_library("matplotlib", savefig=savefig)
    for value in (figure, in_library("matplotlib", figure=figure), in_library("seaborn", savefig=savefig)):
        content = figure_content(value)
        assert (content.extension, content.encode()) == ("png", HEADS["png"])


@pytest.mark.parametrize("value", ["figure", None, in_library("matplotlib"), in_library("plotly")])
def test_value_that_is_no_figure_is_refused(value):
    with pytest.raises(ValueError, match="must be a figure of matplotlib or plotly"):
        figure_content(value)


def test_text_may_have_any_characters_and_a_file_any_bytes(tmp_path):
    assert text_content("a\0\u202eב\U0001f600\ud800").encode().decode() == "a\0\u202eב\U0001f600?"
    path = tmp_path / "<script>.html"
    path.write_bytes(bytes(range(256)))
    content = file_content(path)
    assert (content.caption, content.encode()) == ("<script>.html", bytes(range(256)))
    for wrong in (tmp_path, tmp_path / "none", 3):
        with pytest.raises(ValueError, match=r"cannot be logged|must be the path"):
            file_content(wrong)
    with pytest.raises(ValueError, match="Received a bytes"):
        text_content(b"text")


# --- Tables.

ROWS = [{"name": "a", "score": 0.5, "hit": True}, {"name": "b", "score": float("nan"), "hit": False}]
TABLE = {"columns": ["name", "score", "hit"], "rows": [["a", 0.5, True], ["b", "NaN", False]]}


@pytest.mark.parametrize(
    ("value", "columns"),
    [
        (ROWS, None),
        ([{**row, "other": 1} for row in ROWS], ["name", "score", "hit"]),
        ({"name": ["a", "b"], "score": np.array([0.5, np.nan]), "hit": np.array([True, False])}, None),
        (
            {"hit": (True, False), "score": pandas.Series([0.5, np.nan], [7, 8]), "name": ["a", "b"]},
            TABLE["columns"],
        ),
        (pandas.DataFrame(ROWS, index=[1.5, 0.5]), None),
        ([["a", 0.5, True], ["b", np.nan, False]], TABLE["columns"]),
        (np.array([["a", 0.5, True], ["b", np.nan, False]], object), TABLE["columns"]),
    ],
    ids=["rows", "chosen columns", "columns", "series", "data frame", "lists", "array"],
)
def test_every_form_of_a_table_is_stored_alike(value, columns):
    assert value_of(table_content("t", value, columns)) == TABLE


def test_cells_are_numbers_texts_or_nothing():
    times = pandas.to_datetime(["2026-01-02 03:04:05", None])
    found = value_of(
        table_content("t", pandas.DataFrame({"t": times, "n": pandas.array([1, None], "Int64")}))
    )
    assert found["rows"] == [["2026-01-02 03:04:05", 1], [None, None]]
    found = value_of(
        table_content("t", [{"a": np.float32(0.5), "b": [1], "c": np.datetime64("2026-01-02")}, {}])
    )
    assert found["rows"] == [[0.5, "[1]", "2026-01-02"], [None, None, None]]
    assert value_of(table_content("t", np.ones((2, 1), np.int8)))["columns"] == ["0"]


def test_table_is_cut_with_a_warning_that_has_the_numbers(caplog):
    found = value_of(table_content("long", np.zeros((10_001, 1))))
    assert (len(found["rows"]), found["columns"]) == (10_000, ["0"])
    assert "'long' has 10,001 rows and 1 columns. Its first 10,000 rows and 1 columns" in caplog.text
    found = value_of(table_content("wide", np.zeros((2, 51))))
    assert (len(found["columns"]), len(found["rows"][0])) == (50, 50)
    assert "'wide' has 2 rows and 51 columns. Its first 2 rows and 50 columns" in caplog.text
    caplog.clear()
    table_content("fits", np.zeros((10_000, 1)))
    table_content("fits", np.zeros((1, 50)))
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("value", "columns", "said"),
    [
        ({"a": [1], "b": [1, 2]}, None, "equal lengths. Received: {'a': 1, 'b': 2}"),
        ({"a": 1}, None, "Column 'a' of the table is not a list"),
        ({"a": [1]}, ["b"], "no column 'b'. It has: 'a'"),
        (np.zeros((2, 2)), ["a"], "names 1 columns, but the array has 2"),
        (np.zeros(2), None, r"Received a ndarray of shape \(2,\)"),
        ([[1], [1, 2]], None, "Received a list"),
        ("text", None, "Received a str"),
    ],
    ids=str,
)
def test_value_that_is_no_table_is_refused(value, columns, said):
    with pytest.raises(ValueError, match=said):
        table_content("t", value, columns)


# --- Histograms and confusion matrices.


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "bool"])
@pytest.mark.parametrize("bins", [1, 64])
def test_histogram_is_that_of_numpy(dtype, bins):
    values = (GENERATOR.normal(size=(50, 4)) * 9).astype(dtype)
    found = value_of(histogram_content(values, bins))
    counts, edges = np.histogram(values.astype("float64"), bins)
    assert found["counts"] == counts.tolist()
    assert found["edges"] == edges.tolist()
    assert (found["total"], found["not_finite"], found["max"]) == (200, 0, float(values.max()))


def test_histogram_counts_what_is_not_finite_and_any_range():
    found = value_of(histogram_content([1.0, np.nan, np.inf, -np.inf, 1e308, 2.0], 2))
    assert (found["counts"], found["total"], found["not_finite"]) == ([1, 1], 6, 4)
    assert sum(value_of(histogram_content([1.0, np.nextafter(1.0, 2)]))["counts"]) == 2
    assert sum(value_of(histogram_content([np.nan]))["counts"]) == 0


@pytest.mark.parametrize(
    ("values", "bins"), [([], 64), (["a"], 64), ([1], 0), ([1], 1001), ([1], True), ([1], 2.0)]
)
def test_wrong_histogram_is_refused(values, bins):
    with pytest.raises(ValueError, match=r"`values`|`bins`"):
        histogram_content(values, bins)


@pytest.mark.parametrize("names", [None, ["cat", "dog", "bird"]], ids=["without names", "with names"])
def test_confusion_matrix_is_that_of_sklearn(names):
    true, predicted = GENERATOR.integers(0, 3, (2, 100))
    expected = metrics.confusion_matrix(true, predicted).tolist()
    found = value_of(confusion_matrix_content(true, predicted, names))
    assert found == {"labels": names or ["0", "1", "2"], "counts": expected}
    # As Keras's models return it.
    one_hot, probabilities = np.eye(3)[true], np.eye(3)[predicted] * 0.5 + 0.1
    assert value_of(confusion_matrix_content(one_hot, probabilities, names)) == found


def test_confusion_matrix_of_texts_has_the_order_of_its_labels():
    classes = np.array(["cat", "dog", "bird"])
    true, predicted = classes[GENERATOR.integers(0, 3, (2, 100))]
    for labels in (None, ["dog", "fish", "cat", "bird"]):
        found = value_of(confusion_matrix_content(true.tolist(), predicted, labels))
        assert found["counts"] == metrics.confusion_matrix(true, predicted, labels=labels).tolist()
    assert found["labels"] == ["dog", "fish", "cat", "bird"]


@pytest.mark.parametrize(
    ("true", "predicted", "labels", "said"),
    [
        ([0, 1], [0], None, "Received: 2 and 1"),
        ([], [], None, "at least 1"),
        ([0], ["a"], None, "both be texts"),
        ([0.5], [0], None, "not whole"),
        ([0], [2], ["a", "b"], "Class 2 is not among the 2 classes"),
        ([0], [0], ["a", "a"], "different names"),
        ([0], [0], [], "different names"),
        (list(range(201)), list(range(201)), None, "at most 200 classes. Received 201"),
        (np.zeros((1, 2, 2)), [0], None, r"shape \(1, 2, 2\)"),
    ],
    ids=str,
)
def test_wrong_confusion_matrix_is_refused(true, predicted, labels, said):
    with pytest.raises(ValueError, match=said):
        confusion_matrix_content(true, predicted, labels)


# --- Names of files.

NAMES = st.text(min_size=1, max_size=500) | st.sampled_from(
    ["../../etc/passwd", "/etc/passwd", "..", ".", "a/b", "a\\b", "C:", "\0", "<script>", "\u202e", "x" * 300]
)


@given(st.sampled_from(sorted(EXTENSIONS)), NAMES, st.integers(0, 2**63 - 1))
def test_file_of_any_name_stays_in_its_folder(kind, name, step):
    extension = EXTENSIONS[kind][0]
    file = file_name(kind, name, step, extension)
    assert is_file_of(kind, file)
    assert re.fullmatch(r"[A-Za-z0-9_-]+\.[a-z]+", file)
    assert is_relative(file)
    assert len(file) <= 100
    assert file_name(kind, name, step, extension) == file
    assert re.fullmatch(r"[A-Za-z0-9_-]+\.[a-z]+", download_name(name, step, extension))


# Alike in what is left of them in the name of a file.
ALIKE = st.sampled_from(["a", "a ", "/a", "a/", "\u00e9a", "a" * 50, "a" * 51])


@given(st.lists(st.tuples(st.sampled_from(sorted(EXTENSIONS)), ALIKE, st.integers(0, 2)), unique=True))
def test_items_have_files_of_their_own(items):
    assert len({file_name(*item, EXTENSIONS[item[0]][0]) for item in items}) == len(items)


@given(st.text())
def test_other_texts_are_no_names_of_files(text):
    assert not is_file_of("image", text)


# --- Storing.


@pytest.fixture
def run(tmp_path):
    backend = LocalBackend(RunDirectory(tmp_path / "run"))
    yield backend
    backend.close()


def open_store(backend, **options):
    return MediaStore(DirectoryStorage(backend.run.checkpoints), backend, **options)


def listed(backend):
    return [json.loads(line) for line in backend.run.media.read_text().splitlines()]


def stored(backend):
    """Return the content of each item, by its identity."""
    return {
        (row["kind"], row["name"], row["step"]): (backend.run.path / "media" / row["file"]).read_bytes()
        for row in listed(backend)
    }


def test_local_run_keeps_files_and_a_list(run):
    store = open_store(run)
    store.put("a/../b", 3, text_content("first"))
    store.put("i", 3, image_content(np.zeros((2, 2), np.uint8), "black"))
    store.close()
    assert stored(run)["text", "a/../b", 3] == b"first"
    row = listed(run)[1]
    assert (row["kind"], row["name"], row["step"], row["caption"]) == ("image", "i", 3, "black")
    assert row["size"] == len(stored(run)["image", "i", 3])
    assert {path.name for path in (run.run.path / "media").iterdir()} == {row["file"] for row in listed(run)}
    # A closed store ignores what comes later.
    store.put("late", 1, text_content("x"))
    assert len(listed(run)) == 2


def test_item_that_is_logged_again_replaces_the_earlier_one(run, tmp_path):
    first = open_store(run)
    for step in (1, 2, 3):
        first.put("t", step, text_content(f"first {step}"))
    first.close()
    run.close()
    # As after a kill: a line was cut off.
    with run.run.media.open("a") as file:
        file.write('{"kind": "te')
    again = LocalBackend(RunDirectory(tmp_path / "run"))
    second = open_store(again)
    for step in (2, 3, 4):
        second.put("t", step, text_content(f"second {step}"))
    second.close()
    again.close()
    assert {key[2]: content for key, content in stored(again).items()} == {
        1: b"first 1", 2: b"second 2", 3: b"second 3", 4: b"second 4",
    }  # fmt: skip
    assert [row["step"] for row in listed(again)] == [1, 2, 3, 4]
    assert len(list((again.run.path / "media").iterdir())) == 4


def test_item_that_is_too_large_is_dropped_with_its_size(run, caplog, monkeypatch):
    monkeypatch.setattr(media_store, "MOST_ITEM_BYTES", 2048)
    store = open_store(run)
    store.put("big", 1, text_content("x" * 3072))
    store.put("small", 1, text_content("x" * 2048))
    store.close()
    assert set(stored(run)) == {("text", "small", 1)}
    assert "text 'big' of step 1 has 3.0KB, more than the 2.0KB" in caplog.text


@pytest.mark.parametrize(("limit", "value"), [("MOST_ITEMS", 3), ("MOST_TRIAL_BYTES", 30)])
def test_full_run_drops_the_rest_with_one_warning(run, caplog, monkeypatch, limit, value):
    monkeypatch.setattr(media_store, limit, value)
    store = open_store(run)
    for step in range(6):
        store.put("t", step, text_content("x" * 10))
    # An item in the place of another one takes no more room.
    store.put("t", 0, text_content("y" * 10))
    store.close()
    assert sorted(key[2] for key in stored(run)) == [0, 1, 2]
    assert stored(run)["text", "t", 0] == b"y" * 10
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "This run has 3 media of 30B" in caplog.text


def test_limits_count_what_an_earlier_process_stored(run, monkeypatch):
    for steps in ((0, 1), (1, 2, 3)):
        monkeypatch.setattr(media_store, "MOST_ITEMS", 3)
        store = open_store(run)
        for step in steps:
            store.put("t", step, text_content("x"))
        store.close()
    assert sorted(key[2] for key in stored(run)) == [0, 1, 2]


class FailingStorage(DirectoryStorage):
    """Fails while it is told to."""

    is_failing = True

    def store_file(self, name, source):
        if self.is_failing:
            raise OSError(28, "No space left on device")
        super().store_file(name, source)


def use_storage(backend, monkeypatch, storage):
    folder = backend.open_media()
    monkeypatch.setattr(
        backend, "open_media", lambda: types.SimpleNamespace(**{**vars(folder), "storage": storage})
    )


def test_failing_storage_is_warned_of_once_and_later_items_are_stored(run, caplog, monkeypatch):
    storage = FailingStorage(run.run.path)
    use_storage(run, monkeypatch, storage)
    store = open_store(run)
    for step in range(3):
        store.put("t", step, text_content("x"))
    store.flush()
    storage.is_failing = False
    store.put("t", 3, text_content("x"))
    store.close()
    assert [key[2] for key in stored(run)] == [3]
    assert caplog.text.count("No space left") == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]


class SlowStorage(DirectoryStorage):
    """Stores nothing until it is let go."""

    def __init__(self, root):
        super().__init__(root)
        self.gate = threading.Event()

    def store_file(self, name, source):
        self.gate.wait(30)
        super().store_file(name, source)


def test_slow_storage_holds_nothing_up_and_its_queue_is_bounded(run, caplog, monkeypatch):
    storage = SlowStorage(run.run.path)
    use_storage(run, monkeypatch, storage)
    store = open_store(run, most_waiting_bytes=100, patience_s=0.2)
    began = time.monotonic()
    for step in range(10):
        store.put("t", step, text_content("x" * 10))
    # The storage would hold it up for 30 s.
    assert time.monotonic() - began < 5.0
    # There is no room: the first call waits for a while, those after it do not.
    for step in range(10, 60):
        store.put("t", step, text_content("x" * 10))
    # 50 waits are 10 s.
    assert 0.2 <= time.monotonic() - began < 9.0
    assert caplog.text.count("slower than the media") == 1
    storage.gate.set()
    store.flush()
    store.put("t", 99, text_content("x"))
    store.close()
    assert sorted(key[2] for key in stored(run)) == [*range(10), 99]


def test_flush_gives_up_on_a_storage_that_hangs(run, caplog, monkeypatch):
    storage = SlowStorage(run.run.path)
    use_storage(run, monkeypatch, storage)
    store = open_store(run)
    store.put("t", 1, text_content("x"))
    store.flush(0.1)
    assert "1 media are not stored yet" in caplog.text
    storage.gate.set()
    store.close()
    assert len(stored(run)) == 1


def test_master_without_media_is_warned_of_once(run, caplog, monkeypatch):
    def refuse():
        raise MasterError(501, "not implemented")

    monkeypatch.setattr(run, "open_media", refuse)
    store = open_store(run)
    for step in range(3):
        store.put("t", step, text_content("x"))
    store.close()
    assert caplog.text.count("The master stores no media") == 1
    assert not run.run.media.exists()


def test_media_import_no_library_of_values():
    """Recognising a value must not load what the script did not."""
    import subprocess

    code = (
        "import sys, numpy as np\n"
        "from det_keras.core.media import charts, content, images, store, tables\n"
        "images.image_content(np.zeros((2, 2), 'uint8')).encode()\n"
        "tables.table_content('t', [{'a': 1}])\n"
        "print(*sorted(set(sys.modules) & {'matplotlib', 'plotly', 'pandas', 'PIL', 'seaborn', 'tensorflow'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
