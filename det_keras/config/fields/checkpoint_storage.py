"""The `checkpoint_storage` section: where checkpoints are stored, and which are kept at the end."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from det_keras.config.kinds import Choice, Integer, Kind, Place, Text
from det_keras.config.section import TaggedSection, optional, setting
from det_keras.errors import ConfigProblem

_TYPES = ("directory", "shared_fs", "s3", "gcs", "azure")
_HDFS_KEYS = ("hdfs_url", "hdfs_path", "user")
_REMOVED = "`hdfs` was removed; use `shared_fs` for a directory that all machines mount."


class _StorageType(Choice):
    def parse(self, raw: Any, place: Place) -> str:
        if raw == "hdfs" and place.strict:
            raise place.error(_REMOVED)
        return super().parse(raw, place)


class _Prefix(Kind[str]):
    def parse(self, raw: Any, place: Place) -> str:
        text = Text().parse(raw, place)
        if ".." in text.split("/"):
            raise place.error(f"must not contain a `..` part, received {text!r}.")
        return text


@dataclass(frozen=True)
class CheckpointStorage(TaggedSection, Mapping[str, Any]):
    """Where checkpoints are stored. It is also the mapping that `to_dict` returns.

    Attributes:
        type: the kind of storage. By default the master stores checkpoints in a directory of its data root. The types
            ``s3``, ``gcs`` and ``azure`` require the extra of that name, on the master too.
        save_experiment_best: checkpoints kept of the best in the whole experiment.
        save_trial_best: checkpoints kept of the best in each trial.
        save_trial_latest: checkpoints kept of the newest in each trial.
        host_path: absolute path of a directory that every machine mounts.
        storage_path: directory inside of `host_path`, relative or absolute; None for `host_path` itself.
        container_path: absolute path of the directory, required for ``directory``.
        bucket: name of the bucket.
        access_key: access key of the account; None for the credentials that AWS's own chain finds.
        secret_key: secret key of the account.
        endpoint_url: address of a service that is compatible with S3.
        prefix: path inside of the bucket.
        container: name of the container.
        connection_string: connection string of the account. Excludes `account_url`.
        account_url: address of the account.
        credential: account key or shared access signature for `account_url`; None for the credentials that Azure's own
            chain finds.
    """

    tag: ClassVar[str] = "type"

    type: str | None = optional(_StorageType(_TYPES, open=True), omit_null=True)
    save_experiment_best: int = setting(Integer(minimum=0), 0)
    save_trial_best: int = setting(Integer(minimum=0), 1)
    save_trial_latest: int = setting(Integer(minimum=0), 1)
    host_path: str | None = optional(Text(starts_with="/"), required=True, only=("shared_fs",))
    storage_path: str | None = optional(Text(), only=("shared_fs",))
    propagation: str = setting(Text(), "rprivate", inert=True, only=("shared_fs",))
    container_path: str | None = optional(Text(starts_with="/"), only=("directory", "shared_fs"))
    checkpoint_path: str | None = optional(Text(), inert=True, only=("shared_fs",))
    tensorboard_path: str | None = optional(Text(), inert=True, only=("shared_fs",))
    bucket: str | None = optional(Text(empty=False), required=True, only=("s3", "gcs"))
    access_key: str | None = optional(Text(secret=True), only=("s3",))
    secret_key: str | None = optional(Text(secret=True), only=("s3",))
    endpoint_url: str | None = optional(Text(), only=("s3",))
    prefix: str | None = optional(_Prefix(), only=("s3", "gcs"))
    container: str | None = optional(Text(empty=False), required=True, only=("azure",))
    connection_string: str | None = optional(Text(secret=True), only=("azure",))
    account_url: str | None = optional(Text(), only=("azure",))
    credential: str | None = optional(Text(secret=True), only=("azure",))

    @classmethod
    def unknown_key(cls, name: Any, raw: Mapping[str, Any], known: Mapping[str, Any]) -> str:
        """Return the message about an unknown key; empty for keys of `hdfs`, which has a message of its own.

        Args:
            name: the unknown key.
            raw: the section.
            known: the known keys.
        """
        if raw.get("type") == "hdfs" and name in _HDFS_KEYS:
            return ""
        return super().unknown_key(name, raw, known)

    @classmethod
    def check(cls, values: Mapping[str, Any], place: Place) -> Iterator[ConfigProblem]:
        """Yield problems between fields."""
        if values.get("type") == "directory" and values.get("container_path", "") is None:
            yield place.below("container_path").problem("is required: the absolute path of a directory.")
        host, inside = values.get("host_path"), values.get("storage_path")
        if host and inside and not _is_inside(inside, host):
            yield place.below("storage_path").problem(f"{inside!r} is not inside `host_path` {host!r}.")
        if values.get("type") == "azure" and {"connection_string", "account_url"} <= set(values):
            has_connection, has_url = (
                values[name] is not None for name in ("connection_string", "account_url")
            )
            if has_connection == has_url:
                yield place.problem("`azure` requires exactly one of `connection_string` and `account_url`.")
            if has_connection and values.get("credential") is not None:
                yield place.below("credential").problem(
                    "belongs to `account_url`, not to `connection_string`."
                )

    def __getitem__(self, key: str) -> Any:
        return self.to_dict()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return len(self.to_dict())


def _is_inside(path: str, root: str) -> bool:
    root = posixpath.normpath(root)
    whole = posixpath.normpath(posixpath.join(root, path))
    return whole == root or whole.startswith(root.rstrip("/") + "/")
