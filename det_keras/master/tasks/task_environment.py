"""The environment variables of a task.

Source: the DET_* variables of Determined 0.38.1's launch protocol.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from det_keras.config.fields.environment import Environment
from det_keras.launch.environments.request import EnvironmentRequest
from det_keras.master.errors import InvalidArgumentError
from det_keras.master.resources import ResourcePool

# Linux starts no process with a variable above 128 KiB (MAX_ARG_STRLEN), including its name.
_MOST_CONFIG_BYTES = (128 << 10) - 64


@dataclass(frozen=True)
class Identity:
    """The facts about the master that tasks are given.

    Attributes:
        url: the master's address, with scheme and port.
        master_id: new with every start.
        cluster_id: the id of the data root.
        cert_file: PEM file with which the certificate is checked; None without TLS.
    """

    url: str
    master_id: str
    cluster_id: str
    cert_file: Path | None = None


@dataclass(frozen=True)
class TaskFacts:
    """The facts about one allocation of one task.

    Attributes:
        task_id: the id of the task.
        allocation_id: the id of this attempt.
        task_type: ``TRIAL`` or ``COMMAND``.
        resources_id: UUID of the attempt for launchers.
        username: the name of its owner.
        task_token: identifies the task; expires with the allocation.
        user_token: identifies the owner; expires with the allocation.
    """

    task_id: str
    allocation_id: str
    task_type: str
    resources_id: str
    username: str
    task_token: str = field(repr=False)
    user_token: str = field(repr=False)


def common_variables(identity: Identity, facts: TaskFacts) -> dict[str, str]:
    """Return the variables of every task that are the same on each of its nodes.

    Args:
        identity: the master.
        facts: the task.
    """
    address = urlsplit(identity.url)
    host, port = address.hostname or "", str(address.port or "")
    names = {"task_id": facts.task_id, "allocation_id": facts.allocation_id}
    trust = {} if identity.cert_file is None else {"DET_MASTER_CERT_FILE": str(identity.cert_file)}
    return {
        **trust,
        "DET_MASTER": identity.url,
        "DET_MASTER_ADDR": host,
        "DET_MASTER_HOST": host,
        "DET_MASTER_PORT": port,
        "DET_MASTER_ID": identity.master_id,
        "DET_CLUSTER_ID": identity.cluster_id,
        "DET_TASK_ID": facts.task_id,
        "DET_ALLOCATION_ID": facts.allocation_id,
        "DET_TASK_TYPE": facts.task_type,
        "DET_SESSION_TOKEN": facts.task_token,
        "DET_USER": facts.username,
        "DET_USER_TOKEN": facts.user_token,
        "DET_RESOURCES_ID": facts.resources_id,
        "DET_RESOURCES_TYPE": "docker-container",
        "DET_CONTAINER_ID": facts.resources_id,
        "DET_TASK_LOGGING_METADATA": json.dumps(names),
        "DET_USE_TLS": "false" if identity.cert_file is None else "true",
        "DET_SEGMENT_ENABLED": "false",
    }


def trial_variables(
    *,
    experiment_id: int,
    trial_id: int,
    run_id: int,
    seed: int,
    hparams: Mapping[str, Any],
    config: Mapping[str, Any],
    latest_checkpoint: str | None,
    steps_completed: int,
) -> dict[str, str]:
    """Return the additional variables of a trial.

    Args:
        experiment_id: the number of its experiment.
        trial_id: the number of the trial.
        run_id: 1 at the first launch.
        seed: the seed of all random streams.
        hparams: its hyperparameters.
        config: the experiment's config, with its secrets.
        latest_checkpoint: the checkpoint to resume from; None to start without one.
        steps_completed: batches trained in that checkpoint; 0 for a checkpoint of another trial.
    """
    variables = {
        "DET_EXPERIMENT_ID": str(experiment_id),
        "DET_TRIAL_ID": str(trial_id),
        "DET_TRIAL_RUN_ID": str(run_id),
        "DET_TRIAL_SEED": str(seed),
        "DET_HPARAMS": json.dumps(hparams),
        "DET_EXPERIMENT_CONFIG": json.dumps(config),
        "DET_STEPS_COMPLETED": str(steps_completed),
    }
    if latest_checkpoint is not None:
        variables["DET_LATEST_CHECKPOINT"] = latest_checkpoint
    return variables


def refuse_large_config(config: Mapping[str, Any]) -> None:
    """Refuse a config that is too large to start a task with.

    Raises:
        InvalidArgumentError: it is too large for an environment variable.
    """
    size = len(json.dumps(config))
    if size > _MOST_CONFIG_BYTES:
        raise InvalidArgumentError(
            f"A config, with all defaults and as JSON, may have {_MOST_CONFIG_BYTES + 64 >> 10} KiB: tasks get it in "
            f"their environment. This config has {-(-size >> 10)} KiB. Move large values into a file beside the script."
        )


def job_variables(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the additional variables of a generic job; `config` includes its secrets."""
    return {"DET_TASK_CONFIG": json.dumps(config)}


def requested_environment(environment: Environment) -> EnvironmentRequest:
    """Return what a config asks of the Python environment of its tasks."""
    return EnvironmentRequest(environment.python, environment.pip, environment.requirements)


def refuse_impossible_environment(environment: Environment, pool: ResourcePool) -> None:
    """Refuse a config whose tasks could not be started.

    Args:
        environment: of the config.
        pool: where the tasks would run.

    Raises:
        InvalidArgumentError: the pool cannot provide the environment.
    """
    reason = pool.refusal(requested_environment(environment))
    if reason is not None:
        raise InvalidArgumentError(reason)
