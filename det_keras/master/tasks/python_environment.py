"""The Python environment that a config asks for."""

from __future__ import annotations

from det_keras.config.fields.environment import Environment
from det_keras.launch.environments.request import EnvironmentRequest
from det_keras.master.errors import InvalidArgumentError
from det_keras.master.resources import ResourcePool


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
