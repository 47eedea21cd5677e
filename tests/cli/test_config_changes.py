"""What `--config-file` and `--config` say is to change."""

from __future__ import annotations

from det_keras.cli.submission.config_file import read_changes


def test_a_file_of_comments_alone_changes_nothing(tmp_path):
    path = tmp_path / "changes.yaml"
    path.write_text("# max_restarts: 2\n")
    assert read_changes(str(path), []) == {}
    assert read_changes(str(path), ["max_restarts=3"]) == {"max_restarts": 3}
