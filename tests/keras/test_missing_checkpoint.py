"""A checkpoint that is recorded and not in the storage ends the process, and training does not begin anew unnoticed."""

from __future__ import annotations

import shutil
from contextlib import ExitStack

import pytest
from kinds import InterruptAt, Interrupted, train

import det_keras as det
from det_keras.errors import CheckpointMissingError
from det_keras.keras.training.resume import find_resume_point


@pytest.fixture
def context(tmp_path):
    """A context whose newest checkpoint has gone from the storage, after it was recorded."""
    with pytest.raises(Interrupted):
        train("arrays", tmp_path, InterruptAt(14), min_checkpoint_period={"batches": 5})
    with det.keras.init(run_dir=tmp_path) as context:
        records = context.core.backend.checkpoints()
        assert [record.steps_completed for record in records] == [11, 10]
        context.core.backend.checkpoints = lambda: records
        shutil.rmtree(tmp_path / "checkpoints" / records[0].uuid)
        context.records = records
        yield context


def test_missing_checkpoint_is_named_and_not_passed_over(context):
    newest = context.records[0].uuid
    with ExitStack() as stack, pytest.raises(CheckpointMissingError) as raised:
        find_resume_point(context.core, stack)
    assert f"Checkpoint {newest} (batch 11) is recorded by the master and missing in its storage" in str(
        raised.value
    )
    assert "on_missing_checkpoint='restart'" in str(raised.value)


def test_missing_checkpoint_is_passed_over_where_that_is_asked_for(context, caplog):
    deleted = []
    context.core.backend.report_checkpoint_deleted = deleted.append
    with ExitStack() as stack:
        point = find_resume_point(context.core, stack, skip_missing=True)
        assert deleted == [context.records[0].uuid]
        assert point.record == context.records[1]
    assert "The checkpoint before it is tried." in caplog.text


def test_other_words_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must be 'fail' or 'restart'\. Received: 'ignore'"):
        det.keras.init(run_dir=tmp_path, on_missing_checkpoint="ignore")
