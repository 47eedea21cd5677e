"""Experiments, trials, models and teams from a notebook or a script: ``det.experimental.client.get_experiment(7)``.

It works with any master that implements the protocol. Names are those of Determined's own SDK where it has them; those
of its names that are absent here say so when they are used. An object has the state of the time when it was fetched,
and `reload` fetches it again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from det_keras.client import Session
from det_keras.connection.masters import open_session
from det_keras.connection.settings import Settings
from det_keras.errors import DetError
from det_keras.experimental.absent import Absent
from det_keras.experimental.checkpoint import Checkpoint
from det_keras.experimental.experiment import Experiment
from det_keras.experimental.models import (
    Model,
    ModelOrderBy,
    ModelRegistry,
    ModelSortBy,
    ModelVersion,
    OrderBy,
)
from det_keras.experimental.submission import submit
from det_keras.experimental.teams import Project, Team, User, Workspace
from det_keras.experimental.trial import Trial, TrialMetrics
from det_keras.experimental.trial_table import TrialTable
from det_keras.protocol.metrics import VALIDATION

__all__ = [
    "Checkpoint",
    "Determined",
    "Experiment",
    "ExperimentReference",
    "Model",
    "ModelOrderBy",
    "ModelSortBy",
    "ModelVersion",
    "OrderBy",
    "Project",
    "Trial",
    "TrialMetrics",
    "TrialReference",
    "TrialTable",
    "User",
    "Workspace",
    "create_experiment",
    "create_model",
    "create_user",
    "create_workspace",
    "delete_workspace",
    "get_checkpoint",
    "get_experiment",
    "get_model",
    "get_model_by_id",
    "get_model_labels",
    "get_models",
    "get_session_username",
    "get_trial",
    "get_user_by_id",
    "get_user_by_name",
    "get_workspace",
    "iter_trials_metrics",
    "list_experiments",
    "list_models",
    "list_users",
    "list_workspaces",
    "login",
    "logout",
    "trial_table",
    "whoami",
]

#: The names before 0.21 of Determined.
ExperimentReference = Experiment
TrialReference = Trial
# Of Determined's client.
_ABSENT = frozenset(
    [
        "CombinedMetrics",
        "DownloadMode",
        "ExperimentState",
        "Oauth2ScimClient",
        "TrainingMetrics",
        "TrialOrderBy",
        "TrialSortBy",
        "ValidationMetrics",
        "add_oauth_client",
        "list_oauth_clients",
        "remove_oauth_client",
        "stream_trials_metrics",
        "stream_trials_training_metrics",
        "stream_trials_validation_metrics",
    ]
)


def __getattr__(name: str) -> Any:
    if name in _ABSENT:
        return Absent(f"determined.experimental.client.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Determined(ModelRegistry, Team):
    """A connection with a master, as the same user for all its objects.

    Args:
        master: its address; None for that of ``DET_MASTER``, else the embedded master's.
        user: who asks; None for the user of the environment, else of the last ``det user login``.
        password: of `user`.
        cert_path: a PEM file that checks the master's certificate; None for the system's authorities.
        cert_name: the name in the certificate, if it is not that of the address.
        noverify: do not check the certificate.

    Raises:
        DetError: no master is named and none runs, or there is no token for it.

    Example:
        ```pycon
        >>> determined = Determined()
        >>> determined.get_experiment(1).name
        'digits'
        ```
    """

    def __init__(
        self,
        master: str | None = None,
        user: str | None = None,
        password: str | None = None,
        cert_path: str | None = None,
        cert_name: str | None = None,
        noverify: bool = False,
    ) -> None:
        given = {
            "DET_MASTER": master,
            "DET_USER": user,
            "DET_PASS": password,
            "DET_MASTER_CERT_FILE": "noverify" if noverify else cert_path,
            "DET_MASTER_CERT_NAME": cert_name,
        }
        # Token and password of the environment belong to its user.
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in ("DET_USER_TOKEN", "DET_PASS") or (user is None and password is None)
        }
        self._environ = {**kept, **{name: value for name, value in given.items() if value is not None}}
        self._has_own_token = password is not None
        self._session = open_session(Settings.from_environment(self._environ))

    def create_experiment(
        self,
        config: Mapping[str, Any] | str | os.PathLike[str],
        model_dir: str | os.PathLike[str] | None = None,
        **others: Any,
    ) -> Experiment:
        """Create and activate an experiment; see the function of this name."""
        _refuse("create_experiment", others)
        return get_experiment(submit(config, model_dir, self._environ), session=self._session)

    def get_experiment(self, experiment_id: int) -> Experiment:
        """Return an experiment; see the function of this name."""
        return get_experiment(experiment_id, session=self._session)

    def list_experiments(self, **filters: Any) -> list[Experiment]:
        """Return experiments; see the function of this name."""
        return list_experiments(session=self._session, **filters)

    def get_trial(self, trial_id: int) -> Trial:
        """Return a trial; see the function of this name."""
        return get_trial(trial_id, session=self._session)

    def trial_table(self, filter: str = "", **options: Any) -> TrialTable:  # noqa: A002 - as on the page
        """Return the table of all trials; see the function of this name."""
        return trial_table(filter, session=self._session, **options)

    def get_checkpoint(self, uuid: str) -> Checkpoint:
        """Return a checkpoint; see the function of this name."""
        return get_checkpoint(uuid, session=self._session)

    def iter_trials_metrics(
        self, trial_ids: Iterable[int], group: str = VALIDATION
    ) -> Iterator[TrialMetrics]:
        """Yield the reports of trials; see the function of this name."""
        return iter_trials_metrics(trial_ids, group, session=self._session)

    def logout(self) -> None:
        """Close the connection, and invalidate its token if it was made by a password.

        Raises:
            MasterError: the master rejects the call.
        """
        if self._has_own_token:
            self._session.api.accounts.log_out()
        self._session.close()

    def __getattr__(self, name: str) -> Any:
        if name in _ABSENT:
            return Absent(f"determined.experimental.Determined.{name}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


_logged_in: Determined | None = None


def login(
    master: str | None = None,
    user: str | None = None,
    password: str | None = None,
    cert_path: str | None = None,
    cert_name: str | None = None,
    noverify: bool = False,
) -> None:
    """Connect the functions of this module with a master; without it they use that of the environment.

    Arguments and errors are those of `Determined`.
    """
    global _logged_in
    _logged_in = Determined(master, user, password, cert_path, cert_name, noverify)


def logout() -> None:
    """End the connection of `login`; see `Determined.logout`.

    Raises:
        MasterError: the master rejects the call.
    """
    global _logged_in
    if _logged_in is not None:
        connection, _logged_in = _logged_in, None
        connection.logout()


def create_experiment(
    config: Mapping[str, Any] | str | os.PathLike[str],
    model_dir: str | os.PathLike[str] | None = None,
    **others: Any,
) -> Experiment:
    """Create an experiment, activate it and return it.

    Args:
        config: its config: a mapping, or the path of a YAML file.
        model_dir: the directory with the script, whose files are sent; None sends none.
        others: arguments of Determined's function, which must be None.

    Returns:
        The experiment; `wait` waits for its end.

    Raises:
        DetError: the config is not valid, a file cannot be read, or there is no master.
    """
    return _connection().create_experiment(config, model_dir, **others)


def list_experiments(
    *,
    labels: Sequence[str] | None = None,
    name: str | None = None,
    states: Sequence[str] | None = None,
    session: Session | None = None,
    **others: Any,
) -> list[Experiment]:
    """Return the experiments that the caller may see, by number.

    Args:
        labels: only experiments with all these labels.
        name: only experiments whose names contain this text.
        states: only experiments in one of these states, such as ``COMPLETED``.
        session: as for `get_experiment`.
        others: arguments of Determined's function, which must be None.

    Raises:
        DetError: no master is named and none runs, or one of `others` is given.
        MasterError: a state is unknown.
    """
    _refuse("list_experiments", others)
    session = session or _connected()
    found = session.api.experiments.all(
        limit=-1,
        orderBy="ORDER_BY_ASC",
        sortBy="SORT_BY_ID",
        labels=labels,
        name=name,
        states=None if states is None else [f"STATE_{state.removeprefix('STATE_')}" for state in states],
    )
    return [Experiment(shape["id"], session) for shape in found]


def iter_trials_metrics(
    trial_ids: Iterable[int], group: str = VALIDATION, *, session: Session | None = None
) -> Iterator[TrialMetrics]:
    """Yield the reports of one group of several trials, trial by trial, oldest first.

    Args:
        trial_ids: numbers of the trials.
        group: ``training``, ``validation`` or a name of the script.
        session: as for `get_experiment`.

    Raises:
        MasterError: there is no such trial, or the caller may not see it.
    """
    session = session or _connected()
    for trial_id in trial_ids:
        yield from get_trial(trial_id, session=session).iter_metrics(group)


def get_experiment(experiment_id: int, *, session: Session | None = None) -> Experiment:
    """Return an experiment as it is now; `reload` fetches it again.

    Args:
        experiment_id: its number.
        session: a session with its master; by default with that of ``DET_MASTER``, else with the embedded master.

    Returns:
        The experiment, with its config and its trials.

    Raises:
        DetError: no master is named and none runs.
        MasterError: there is no such experiment, or the caller may not see it.

    Example:
        ```pycon
        >>> experiment = get_experiment(1)
        >>> experiment.name, experiment.metric
        ('digits', 'val_loss')
        >>> trial = experiment.best_trial()
        >>> trial.hparams, trial.searcher_metric
        ({'learning_rate': 0.01}, 0.25)
        >>> trial.metrics("val_loss")
        {'batches': [10, 20], 'values': [0.5, 0.25]}
        ```
    """
    return Experiment(experiment_id, session or _connected())


def get_trial(trial_id: int, *, session: Session | None = None) -> Trial:
    """Return a trial as it is now.

    Args:
        trial_id: its number.
        session: as for `get_experiment`.

    Returns:
        The trial, with its hyperparameters and the summaries of its metrics.

    Raises:
        DetError: no master is named and none runs.
        MasterError: there is no such trial, or the caller may not see it.

    Example:
        ```pycon
        >>> trial = get_trial(1)
        >>> trial.state, trial.batches
        ('RUNNING', 20)
        ```
    """
    session = session or _connected()
    return Trial(session.api.trials.get(int(trial_id)), session)


def trial_table(
    filter: str = "",  # noqa: A002 - as on the page
    *,
    sort: str = "",
    columns: Sequence[str] = (),
    group: str = "",
    limit: int | None = None,
    session: Session | None = None,
) -> TrialTable:
    """Return the trials of all experiments as a table, as the page ``/trials`` shows it.

    Args:
        filter: terms such as ``val_accuracy>.9 optimizer=adam state:completed experiment:mnist``; all must hold.
        sort: name of a column, with ``-`` in front for the largest first; by default the newest trials are first.
        columns: names of columns; by default those that fit the trials that are found.
        group: name of a column by whose values trials are grouped; each row then has means and standard deviations.
        limit: maximum number of rows; by default all.
        session: as for `get_experiment`.

    Returns:
        The rows, and `to_frame` for a pandas DataFrame.

    Raises:
        DetError: no master is named and none runs, or it is a Determined master, which has no such table.
        MasterError: a name is unknown; the error names the nearest ones.

    Example:
        ```pycon
        >>> table = trial_table("learning_rate<1", sort="-id", columns=["id", "learning_rate"])
        >>> table.rows
        [{'id': 1, 'learning_rate': 0.01}]
        ```
    """
    return TrialTable.read(
        session or _connected(), q=filter, sort=sort, columns=columns, group=group, limit=limit
    )


def get_checkpoint(uuid: str, *, session: Session | None = None) -> Checkpoint:
    """Return a checkpoint as it is now.

    Args:
        uuid: its UUID.
        session: as for `get_experiment`.

    Returns:
        The checkpoint, with its files, its metadata and the metrics of its validation.

    Raises:
        DetError: no master is named and none runs.
        MasterError: there is no such checkpoint, or the caller may not see it.
    """
    session = session or _connected()
    return Checkpoint(session.api.checkpoints.get(uuid), session)


def create_model(*arguments: Any, **options: Any) -> Model:
    """Create a model in the registry; see `Determined.create_model`."""
    return _connection().create_model(*arguments, **options)


def get_model(identifier: str | int) -> Model:
    """Return a model of the registry, by its name or its number; see `Determined.get_model`."""
    return _connection().get_model(identifier)


def get_model_by_id(model_id: int) -> Model:
    """Return the model with a number; see `Determined.get_model`."""
    return _connection().get_model(model_id)


def list_models(*arguments: Any, **filters: Any) -> list[Model]:
    """Return models of the registry; see `Determined.list_models`."""
    return _connection().list_models(*arguments, **filters)


def get_models(*arguments: Any, **filters: Any) -> list[Model]:
    """Return models of the registry; see `Determined.list_models`."""
    return _connection().list_models(*arguments, **filters)


def get_model_labels() -> list[str]:
    """Return the labels of all models of the registry; see `Determined.get_model_labels`."""
    return _connection().get_model_labels()


def create_workspace(name: str) -> Workspace:
    """Create a workspace; see `Determined.create_workspace`."""
    return _connection().create_workspace(name)


def get_workspace(name: str) -> Workspace:
    """Return the workspace with a name; see `Determined.get_workspace`."""
    return _connection().get_workspace(name)


def list_workspaces() -> list[Workspace]:
    """Return all workspaces; see `Determined.list_workspaces`."""
    return _connection().list_workspaces()


def delete_workspace(name: str) -> None:
    """Delete a workspace with all that is in it; see `Determined.delete_workspace`."""
    _connection().delete_workspace(name)


def create_user(username: str, admin: bool, password: str | None = None) -> User:
    """Create a user; see `Determined.create_user`."""
    return _connection().create_user(username, admin, password)


def get_user_by_name(user_name: str) -> User:
    """Return the user with a name; see `Determined.get_user_by_name`."""
    return _connection().get_user_by_name(user_name)


def get_user_by_id(user_id: int) -> User:
    """Return the user with a number; see `Determined.get_user_by_id`."""
    return _connection().get_user_by_id(user_id)


def list_users(active: bool | None = None) -> list[User]:
    """Return the users; see `Determined.list_users`."""
    return _connection().list_users(active)


def whoami() -> User:
    """Return the user as whom this process calls; see `Determined.whoami`."""
    return _connection().whoami()


def get_session_username() -> str:
    """Return the name of the user as whom this process calls; see `Determined.whoami`."""
    return _connection().get_session_username()


def _connection() -> Determined:
    return _logged_in or Determined()


def _refuse(function: str, others: Mapping[str, Any]) -> None:
    given = [f"`{name}`" for name, value in others.items() if value is not None]
    if given:
        raise DetError(f"`{function}` of det_keras has no {', '.join(given)}.")


def _connected() -> Session:
    if _logged_in is not None:
        return _logged_in._session
    # The first object that a notebook asks for: no caller could have read the environment before.
    return open_session(Settings.from_environment(os.environ))
