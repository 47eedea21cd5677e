"""Checkpoints from the files of several ranks."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks import on_ranks

from det_keras.core.backend.local import LocalBackend, RunDirectory
from det_keras.core.backend.shared import SharedBackend
from det_keras.core.checkpoint import CheckpointContext, DownloadMode
from det_keras.core.sharded import copy_files, join_files, join_metadata
from det_keras.errors import CheckpointError
from det_keras.storage import DirectoryStorage


def uploaded(folder, size, files_of, metadata_of, how="upload"):
    """Upload on every rank; return the results and the run's checkpoints as {path: content}."""
    run = RunDirectory(folder)
    backend = LocalBackend(run)
    storage = DirectoryStorage(run.checkpoints)
    lock = threading.Lock()

    def work(distributed):
        shared = SharedBackend(backend if distributed.is_chief else None, distributed)
        context = CheckpointContext(storage, shared, distributed)
        files = files_of(distributed.rank)
        metadata = metadata_of(distributed.rank)
        if how == "store_path":
            with context.store_path(metadata, shard=True) as (path, uuid):
                write(path, files)
            return uuid
        directory = None
        if files is not None:
            with lock:
                directory = folder / f"rank-{distributed.rank}"
                directory.mkdir(exist_ok=True)
            write(directory, files)
        return context.upload(directory, metadata, shard=True)

    results = on_ranks(size, work)
    stored = {
        record.uuid: {
            name: (run.checkpoints / record.uuid / name).read_text()
            for name in record.resources
            if not name.endswith("/") and name not in ("metadata.json", "manifest.json")
        }
        for record in backend.checkpoints()
    }
    metadata = {record.uuid: record.metadata for record in backend.checkpoints()}
    backend.close()
    return results, stored, metadata


def write(folder, files):
    for name, content in (files or {}).items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


@pytest.mark.parametrize("how", ["upload", "store_path"])
@pytest.mark.parametrize("size", [2, 4])
def test_disjoint_files_make_one_checkpoint(tmp_path, size, how):
    results, stored, metadata = uploaded(
        tmp_path,
        size,
        lambda rank: {f"part-{rank}": str(rank), f"deep/er/{rank}": "x"},
        lambda rank: {"steps_completed": 3, "parts": {str(rank): rank}},
        how,
    )
    assert len(set(results)) == 1
    files = {f"part-{rank}": str(rank) for rank in range(size)} | {f"deep/er/{r}": "x" for r in range(size)}
    assert stored == {results[0]: files}
    assert metadata[results[0]] == {"steps_completed": 3, "parts": {str(rank): rank for rank in range(size)}}


@pytest.mark.parametrize("size", [2, 4])
def test_equal_files_are_stored_once(tmp_path, size):
    results, stored, _ = uploaded(
        tmp_path, size, lambda rank: {"same": "content", f"own-{rank}": ""}, lambda _: {"steps_completed": 1}
    )
    assert stored[results[0]] == {"same": "content"} | {f"own-{rank}": "" for rank in range(size)}


@pytest.mark.parametrize("how", ["upload", "store_path"])
@pytest.mark.parametrize("size", [2, 4])
def test_conflicting_files_are_refused_on_every_rank(tmp_path, size, how):
    results, stored, _ = uploaded(
        tmp_path,
        size,
        lambda rank: {"weights": str(rank), "same": ""},
        lambda _: {"steps_completed": 1},
        how,
    )
    assert stored == {}
    assert not list((tmp_path / "checkpoints").glob("*")) or not any(
        path.name.startswith(".staging") for path in (tmp_path / "checkpoints").iterdir()
    )
    for result in results:
        assert isinstance(result, RuntimeError)
        assert f"weights: ranks {list(range(size))}" in str(result)
        assert "same" not in str(result)


def test_file_on_one_rank_and_directory_on_another_conflict(tmp_path):
    results, stored, _ = uploaded(
        tmp_path, 2, lambda rank: {"a": ""} if rank else {"a/b": ""}, lambda _: {"steps_completed": 1}
    )
    assert stored == {}
    assert all("a: ranks [0, 1]" in str(result) for result in results)


def test_conflicting_metadata_is_refused(tmp_path):
    results, stored, _ = uploaded(tmp_path, 2, lambda _: {}, lambda rank: {"steps_completed": rank})
    assert stored == {}
    assert all("steps_completed: ranks [0, 1]" in str(result) for result in results)


def test_rank_without_files_passes_none(tmp_path):
    results, stored, _ = uploaded(
        tmp_path,
        2,
        lambda rank: {"a": "1"} if rank == 0 else None,
        lambda rank: {"steps_completed": 1} if rank == 0 else None,
    )
    assert stored[results[1]] == {"a": "1"}


def test_failure_on_one_rank_is_an_error_on_all(tmp_path):
    def files_of(rank):
        return {"metadata.json/x": ""} if rank == 1 else {"a": ""}

    results, stored, _ = uploaded(tmp_path / "taken", 2, files_of, lambda _: {"steps_completed": 1})
    assert stored == {}
    assert all(isinstance(result, CheckpointError) and "metadata.json" in str(result) for result in results)

    def work(distributed):
        shared = SharedBackend(None, distributed)
        context = CheckpointContext(DirectoryStorage(tmp_path / "storage"), shared, distributed)
        folder = tmp_path / ("missing" if distributed.rank else "taken")
        try:
            context.upload(folder, {"steps_completed": 1}, shard=True)
        except (ValueError, CheckpointError) as error:
            return str(error), distributed.allgather(distributed.rank)

    first, second = on_ranks(2, work)
    assert "rank 1: There is no directory" in first[0]
    assert second[0].startswith("There is no directory")
    assert first[1] == second[1] == [0, 1], "the ranks are still in step"


def test_metadata_without_steps_completed_is_refused(tmp_path):
    results, stored, _ = uploaded(tmp_path, 2, lambda _: {"a": ""}, lambda _: {"x": 1})
    assert stored == {}
    assert all(isinstance(result, ValueError) for result in results)


def test_workers_share_a_download_and_its_errors(tmp_path):
    run = RunDirectory(tmp_path / "run")
    backend = LocalBackend(run)
    storage = DirectoryStorage(run.checkpoints)
    alone = CheckpointContext(storage, backend)
    write(tmp_path / "in", {"a": "1", "b/c": "2"})
    uuid = alone.upload(tmp_path / "in", {"steps_completed": 1})

    def work(distributed):
        context = CheckpointContext(storage, SharedBackend(None, distributed), distributed)
        with context.restore_path(uuid, selector=lambda name: name in ("b/", "b/c")) as path:
            seen = sorted(one.relative_to(path).as_posix() for one in path.rglob("*"))
        target = tmp_path / "out" / str(distributed.rank)
        context.download(uuid, target, DownloadMode.NoSharedDownload)
        distributed.allgather(None)
        (storage.root / uuid / "a").write_text("9")
        distributed.allgather(None)
        with pytest.raises(CheckpointError, match="corrupt"), context.restore_path(uuid):
            pass
        return path, seen, json.loads((target / "metadata.json").read_text()), (target / "a").read_text()

    first, second = on_ranks(2, work)
    assert first == second
    assert first[1:] == (["b", "b/c"], {"steps_completed": 1}, "1")
    assert not first[0].exists(), "the copy is gone when both have left the block"
    backend.close()


def test_only_the_chief_uploads_without_shards(tmp_path):
    def work(distributed):
        context = CheckpointContext(DirectoryStorage(tmp_path), SharedBackend(None, distributed), distributed)
        if distributed.rank == 1:
            context.upload(tmp_path, {"steps_completed": 1})

    assert "which only the chief may" in str(on_ranks(2, work)[1])


def test_deleted_checkpoint_is_gone(tmp_path):
    run = RunDirectory(tmp_path)
    backend = LocalBackend(run)
    context = CheckpointContext(DirectoryStorage(run.checkpoints), backend)
    with context.store_path({"steps_completed": 2, "note": "x"}) as (_, uuid):
        pass
    assert context.get_metadata(uuid) == {"steps_completed": 2, "note": "x"}
    context.delete(uuid)
    context.delete(uuid)
    assert backend.checkpoints() == []
    with pytest.raises(CheckpointError, match="no checkpoint"):
        context.get_metadata(uuid)
    backend.close()


names = st.sampled_from(["a", "b", "c/", "c/d", "c/e"])
entries = st.tuples(st.integers(0, 1), st.sampled_from(["x", "y"]))


@given(st.lists(st.dictionaries(names, entries), min_size=1, max_size=4))
def test_joined_files_are_a_partition_or_a_conflict(shards):
    conflicting = {
        name
        for shard in shards
        for name, entry in shard.items()
        if any(other.get(name, entry) != entry for other in shards)
    }
    if conflicting:
        with pytest.raises(RuntimeError) as error:
            join_files(shards)
        assert all(f"    {name}: ranks" in str(error.value) for name in conflicting)
        return
    shares = join_files(shards)
    owned = [name for share in shares for name in share]
    assert len(owned) == len(set(owned))
    assert set(owned) == {name for shard in shards for name in shard}
    for rank, share in enumerate(shares):
        assert all(name not in shard for name in share for shard in shards[:rank])


values = st.recursive(
    st.integers(0, 2), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=5
)
metadata = st.dictionaries(st.sampled_from("abc"), values, max_size=3)


def leaves(value, path=()):
    if isinstance(value, dict):
        return {path: "dict"} | {
            p: v for key, one in value.items() for p, v in leaves(one, (*path, key)).items()
        }
    return {path: value}


@given(st.lists(metadata, min_size=1, max_size=3))
def test_joined_metadata_has_every_value_or_is_refused(parts):
    known = {}
    agree = True
    for part in parts:
        for path, value in leaves(part).items():
            agree &= known.setdefault(path, value) == value
    if agree:
        assert leaves(join_metadata(parts)) == known | {(): "dict"}
    else:
        with pytest.raises(RuntimeError, match="do not agree on the metadata"):
            join_metadata(parts)


def test_copied_directories_need_no_parents(tmp_path):
    (tmp_path / "from/a/b").mkdir(parents=True)
    copy_files(tmp_path / "from", ["a/b/"], tmp_path / "to")
    assert (tmp_path / "to/a/b").is_dir()
