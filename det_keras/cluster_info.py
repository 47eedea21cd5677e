"""The launcher's information for this process, read from the environment once.

A trial or job gets it from DET_* variables, or from the info files that a real Determined cluster writes. Other
modules do not read ``os.environ`` for that: they receive a `ClusterInfo`.

Source: the variables and files of the Determined 0.38.1 launch protocol.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from det_keras.errors import ClusterInfoError

INFO_DIRECTORY = Path("/run/determined/info")

_LOOPBACK = "127.0.0.1"
_RENDEZVOUS = "DET_KERAS_RENDEZVOUS"
_COPY = "DET_KERAS_COPY"

T = TypeVar("T")


@dataclass(frozen=True)
class WorkerInfo:
    """The position of this process among the workers of its job, as set by the process launcher.

    Attributes:
        rank: index of this process, 0 to `size` - 1.
        size: number of processes.
        local_rank: index of this process among those on its machine.
        local_size: number of processes on this machine.
        cross_rank: index of the machine.
        cross_size: number of machines.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> WorkerInfo:
        """Read the variables that Horovod's launchers set; without them, a single process."""
        if "HOROVOD_RANK" not in environ:
            return cls()
        names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
        return cls(
            **{name: _variable(environ, f"HOROVOD_{name.upper()}", int, "an integer") for name in names}
        )

    @classmethod
    def from_torch_variables(cls, environ: Mapping[str, str]) -> WorkerInfo:
        """Read the variables that torchrun sets."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
        return cls(*(_variable(environ, name, int, "an integer, as torchrun sets it") for name in names))

    @classmethod
    def from_deepspeed_variables(cls, environ: Mapping[str, str]) -> WorkerInfo:
        """Read the variables that DeepSpeed's launcher sets."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
        return cls(*(_variable(environ, name, int, "an integer, as DeepSpeed sets it") for name in names))


@dataclass(frozen=True)
class ChiefInfo:
    """The rendezvous of a job's workers, as set by the process launcher.

    Attributes:
        ip: address of the chief's machine; None if it is not set.
        key: secret of the workers of this job; None if there is none.
        port: port on which the chief listens.
        job: another launcher's name for this job; empty if there is none.
    """

    ip: str | None = None
    key: str | None = field(default=None, repr=False)
    port: int = 12360
    job: str = ""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> ChiefInfo:
        """Read the variables that launchers and the master set."""
        name = "INTER_TRAIN_PROCESS_COMM_PORT_1"
        return cls(
            ip=environ.get("DET_CHIEF_IP") or None,
            key=environ.get("DET_CHIEF_KEY") or None,
            port=_variable(environ, name, int, "a port") if environ.get(name) else cls.port,
            job=" ".join(
                environ.get(variable, "")
                for variable in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
            ),
        )


@dataclass(frozen=True)
class LocalOverrides:
    """Settings of `det experiment create --local` and `--verify-resume` for a script without a master.

    Attributes:
        config: path of the config that replaces the script's own.
        run_dir: the run directory that replaces the script's own.
        batch_limit: number of batches after which training ends.
    """

    config: str | None = None
    run_dir: str | None = None
    batch_limit: int | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> LocalOverrides:
        """Read the variables that the command line sets; without them, all fields are None."""
        limit = environ.get("DET_KERAS_LOCAL_BATCHES")
        return cls(
            config=environ.get("DET_KERAS_LOCAL_CONFIG") or None,
            run_dir=environ.get("DET_KERAS_LOCAL_RUN_DIR") or None,
            batch_limit=_variable(environ, "DET_KERAS_LOCAL_BATCHES", int, "an integer") if limit else None,
        )


@dataclass(frozen=True)
class CopyInfo:
    """What a process is told that is a copy of a script: it resumes from a checkpoint and is compared at a later one.

    A copy reports nothing. It ends where the later checkpoint was saved, and writes what differs into a file.

    Attributes:
        storage: the `checkpoint_storage` section of the storage with the checkpoints.
        checkpoints: the checkpoints that the script may need to resume: the ends of its earlier trainings, and the one
            from which it resumes.
        expected: the checkpoint to compare with.
        folder: of the copy's own files; made by the copy, removed by what started it.
        result: path of the file with the result.
        seed: the seed of a local run; None in a trial.
    """

    storage: dict[str, Any]
    checkpoints: tuple[str, ...]
    expected: str
    folder: str
    result: str
    seed: int | None = None

    def to_environment(self) -> dict[str, str]:
        """Return the variable that tells a process to be such a copy."""
        return {_COPY: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> CopyInfo | None:
        """Read the variable of `to_environment`; None without it."""
        if not environ.get(_COPY):
            return None
        content = _variable(environ, _COPY, _mapping, "a JSON object")
        return cls(**{**content, "checkpoints": tuple(content["checkpoints"])})


@dataclass(frozen=True)
class TrialInfo:
    """The launcher's information about a trial.

    Attributes:
        trial_id: number of the trial, also its run id in the protocol.
        experiment_id: the experiment that owns it.
        trial_seed: seed of everything random in the trial, 0 to 2**32 - 1.
        hparams: its hyperparameter values, nested as in the config.
        config: the experiment's full config.
        steps_completed: number of batches trained in the checkpoint it starts from; 0 without one.
        trial_run_id: number of the launch, from 1.
        debug: whether the config asks for verbose logs.
    """

    trial_id: int
    experiment_id: int
    trial_seed: int
    hparams: dict[str, Any]
    config: dict[str, Any]
    steps_completed: int
    trial_run_id: int
    debug: bool = False


@dataclass(frozen=True)
class ClusterInfo:
    """Where this process runs and how it connects to its master.

    Attributes:
        master_url: with scheme and port.
        cluster_id: UUID text of the cluster.
        agent_id: id of the agent that started this process.
        slot_ids: the slots of this machine that the task uses.
        task_id: trial ``<experiment>.<uuid>``, otherwise a UUID.
        allocation_id: ``<task id>.<number of the launch>``.
        session_token: the task token; becomes invalid when the allocation ends.
        task_type: ``TRIAL``, ``COMMAND``, ``GENERIC`` ...
        user: name of the task's owner.
        user_token: a user token of the owner, for reading other trials; may be empty.
        latest_checkpoint: UUID to start from, or None.
        master_cert_file: CA bundle, or ``noverify``; None without TLS.
        master_cert_name: the name to verify instead of the host's.
        trial: only in trials.
        task_config: config of a generic job; {} in trials.
        container_addrs: addresses of the task's machines, the chief's first.
        container_rank: index of this machine in `container_addrs`.
        container_slot_counts: slots on each of these machines.
    """

    master_url: str
    cluster_id: str
    agent_id: str
    slot_ids: tuple[int, ...]
    task_id: str
    allocation_id: str
    session_token: str = field(repr=False)
    task_type: str
    user: str = ""
    user_token: str = field(default="", repr=False)
    latest_checkpoint: str | None = None
    master_cert_file: str | None = None
    master_cert_name: str | None = None
    trial: TrialInfo | None = None
    task_config: dict[str, Any] = field(default_factory=dict)
    container_addrs: tuple[str, ...] = (_LOOPBACK,)
    container_rank: int = 0
    container_slot_counts: tuple[int, ...] = ()

    @property
    def user_data(self) -> dict[str, Any]:
        """The config's ``data`` field, {} if it has none."""
        config = self.trial.config if self.trial is not None else self.task_config
        return dict(config.get("data") or {})

    @property
    def gpu_uuids(self) -> list[str]:
        """The GPUs that the launcher made visible to this task."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return [gpu for gpu in visible.split(",") if gpu]


@functools.cache
def get_cluster_info() -> ClusterInfo | None:
    """Return the launcher's information for this process, or None when no master started it.

    Raises:
        ClusterInfoError: a variable or file is missing or malformed; names it and what was expected.
    """
    return read_cluster_info(os.environ, INFO_DIRECTORY)


@functools.cache
def get_copy_info() -> CopyInfo | None:
    """Return what this process is told if it is a copy of a script that is compared; None if it is none.

    Raises:
        ClusterInfoError: the variable is malformed.
    """
    return CopyInfo.from_environment(os.environ)


def read_cluster_info(environ: Mapping[str, str], info_directory: Path) -> ClusterInfo | None:
    """Return the `ClusterInfo` from variables, else from info files, else None.

    Which machines share the task, a Determined cluster says in a file, since it does not know before all of them have
    started, and our own master in a variable.
    """
    if environ.get("DET_TASK_TYPE"):
        info = _from_variables(environ)
    elif (info_directory / "cluster.json").is_file():
        info = _from_files(environ, info_directory)
    else:
        return None
    if (text := environ.get(_RENDEZVOUS)) is not None:
        content = _variable(environ, _RENDEZVOUS, _mapping, "a JSON object")
        return replace(info, **_rendezvous(content, f"`{_RENDEZVOUS}`, {text!r},"))
    rendezvous = info_directory / "rendezvous.json"
    if rendezvous.is_file():
        return replace(info, **_rendezvous(_read_file(rendezvous), str(rendezvous)))
    return replace(info, container_slot_counts=(len(info.slot_ids),))


def _from_variables(environ: Mapping[str, str]) -> ClusterInfo:
    task_type = environ["DET_TASK_TYPE"]
    return ClusterInfo(
        master_url=_variable(environ, "DET_MASTER", _url, "a URL such as http://127.0.0.1:8080"),
        cluster_id=environ.get("DET_CLUSTER_ID", ""),
        agent_id=environ.get("DET_AGENT_ID", ""),
        slot_ids=tuple(
            _variable(environ, "DET_SLOT_IDS", _int_list, "a JSON list of integers such as [0,1]")
        ),
        task_id=_variable(environ, "DET_TASK_ID", _text, "the id of the task"),
        allocation_id=_variable(environ, "DET_ALLOCATION_ID", _text, "the id of the allocation"),
        session_token=_variable(environ, "DET_SESSION_TOKEN", _text, "the task's token"),
        task_type=task_type,
        user=environ.get("DET_USER", ""),
        user_token=environ.get("DET_USER_TOKEN", ""),
        latest_checkpoint=environ.get("DET_LATEST_CHECKPOINT") or None,
        master_cert_file=environ.get("DET_MASTER_CERT_FILE") or None,
        master_cert_name=environ.get("DET_MASTER_CERT_NAME") or None,
        trial=_trial_from_variables(environ) if task_type == "TRIAL" else None,
        task_config=_task_config(environ),
    )


def _trial_from_variables(environ: Mapping[str, str]) -> TrialInfo:
    config = _variable(environ, "DET_EXPERIMENT_CONFIG", _mapping, "the experiment's config as a JSON object")
    return TrialInfo(
        trial_id=_variable(environ, "DET_TRIAL_ID", _natural, "an integer of at least 0"),
        experiment_id=_variable(environ, "DET_EXPERIMENT_ID", _natural, "an integer of at least 0"),
        trial_seed=_variable(environ, "DET_TRIAL_SEED", _seed, "an integer from 0 to 2**32 - 1"),
        hparams=_variable(environ, "DET_HPARAMS", _mapping, "the hyperparameters as a JSON object"),
        config=config,
        steps_completed=_variable(environ, "DET_STEPS_COMPLETED", _natural, "an integer of at least 0"),
        trial_run_id=_variable(environ, "DET_TRIAL_RUN_ID", _natural, "an integer of at least 0"),
        debug=bool(config.get("debug", False)),
    )


def _task_config(environ: Mapping[str, str]) -> dict[str, Any]:
    if not environ.get("DET_TASK_CONFIG"):
        return {}
    return _variable(environ, "DET_TASK_CONFIG", _mapping, "the job's config as a JSON object")


def _from_files(environ: Mapping[str, str], directory: Path) -> ClusterInfo:
    cluster = _read_file(directory / "cluster.json")
    trial = directory / "trial.json"
    try:
        return ClusterInfo(
            master_url=_url(cluster["master_url"]),
            cluster_id=cluster["cluster_id"],
            agent_id=cluster["agent_id"],
            slot_ids=tuple(int(slot) for slot in cluster["slot_ids"]),
            task_id=cluster["task_id"],
            allocation_id=cluster["allocation_id"],
            session_token=environ.get("DET_SESSION_TOKEN") or cluster["session_token"],
            task_type=cluster["task_type"],
            user=environ.get("DET_USER", ""),
            user_token=environ.get("DET_USER_TOKEN", ""),
            latest_checkpoint=cluster.get("latest_checkpoint"),
            master_cert_file=cluster.get("master_cert_file"),
            master_cert_name=cluster.get("master_cert_name"),
            trial=_trial_from_file(trial) if trial.is_file() else None,
            task_config=_task_config(environ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ClusterInfoError(
            f"{directory / 'cluster.json'} is missing or has a wrong value for {error}."
        ) from error


def _trial_from_file(path: Path) -> TrialInfo:
    content = _read_file(path)
    try:
        return TrialInfo(
            trial_id=int(content["trial_id"]),
            experiment_id=int(content["experiment_id"]),
            trial_seed=_seed(content["trial_seed"]),
            hparams=_mapping(content["hparams"]),
            config=_mapping(content["config"]),
            steps_completed=_natural(content["steps_completed"]),
            trial_run_id=int(content["trial_run_id"]),
            debug=bool(content.get("debug", False)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ClusterInfoError(f"{path} is missing or has a wrong value for {error}.") from error


def _rendezvous(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    try:
        addresses, rank = content["container_addrs"], _natural(content["container_rank"])
        slots = tuple(_natural(count) for count in content["container_slot_counts"])
        if not isinstance(addresses, list) or not rank < len(addresses) == len(slots):
            raise ValueError(f"rank {rank} of the machines {addresses} with {list(slots)} slots")
    except (KeyError, TypeError, ValueError) as error:
        raise ClusterInfoError(f"{where} is missing or has a wrong value for {error}.") from error
    return {
        "container_addrs": tuple(map(str, addresses)),
        "container_rank": rank,
        "container_slot_counts": slots,
    }


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return _mapping(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError) as error:
        raise ClusterInfoError(f"{path} should hold a JSON object; {error}.") from error


def _variable(environ: Mapping[str, str], name: str, convert: Callable[[str], T], expected: str) -> T:
    text = environ.get(name)
    if text is None:
        raise ClusterInfoError(f"The environment variable `{name}` is missing; expected {expected}.")
    try:
        return convert(text)
    except (ValueError, TypeError):
        raise ClusterInfoError(
            f"The environment variable `{name}` is {text!r}; expected {expected}."
        ) from None


def _text(text: str) -> str:
    if not text:
        raise ValueError("empty")
    return text


def _url(text: str) -> str:
    address = urlsplit(text)
    # Reading `port` raises ValueError if it is malformed.
    if address.scheme not in ("http", "https") or not address.hostname or address.port == 0:
        raise ValueError(f"{text!r}, which is no URL with scheme and host")
    return text.rstrip("/")


def _natural(value: str | int) -> int:
    number = int(value)
    if number < 0:
        raise ValueError(f"{value!r}, which is below 0")
    return number


def _seed(value: str | int) -> int:
    number = _natural(value)
    if number >= 2**32:
        raise ValueError(f"{value!r}, which is not a seed of 32 bits")
    return number


def _int_list(text: str) -> list[int]:
    values = json.loads(text)
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise ValueError("not a list of integers")
    return values


def _mapping(value: Any) -> dict[str, Any]:
    content = json.loads(value) if isinstance(value, str) else value
    if not isinstance(content, dict):
        raise TypeError("not a JSON object")
    return content
