"""Creating, changing and deleting experiments."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from det_keras import search, storage
from det_keras.config import ExperimentConfig, LoadedConfig, hide_secrets, load_experiment_config, load_yaml
from det_keras.config.secrets import secret_values
from det_keras.errors import ConfigError
from det_keras.master.checkpoints import records as checkpoints
from det_keras.master.database.concealing import without_copied_secrets
from det_keras.master.database.context_store import ContextStore, FileEntry
from det_keras.master.database.lookups import find_experiment, refuse_overtaken
from det_keras.master.database.models import CheckpointRow, ExperimentRow, TrialRow
from det_keras.master.database.notifier import DELETIONS, WORK
from det_keras.master.database.store import Store, Transaction
from det_keras.master.errors import InvalidArgumentError, NotFoundError
from det_keras.master.experiments import continuing
from det_keras.master.experiments.bulk import begin_deletion, set_archived
from det_keras.master.experiments.controller import ExperimentController
from det_keras.master.reports.provenance import check_record, store_record, subject_of
from det_keras.master.resources import ResourcePool
from det_keras.master.tasks.task_environment import refuse_impossible_environment, refuse_large_config
from det_keras.master.teams.placing import Place, place_of, place_of_unmanaged, refuse_closed
from det_keras.master.teams.projects import find_project
from det_keras.master.teams.templates import finder
from det_keras.protocol import states
from det_keras.protocol.values import now

_MOST_CONFIG_BYTES = 1 << 20
# Unmanaged experiments have no search, but a metric that determines the best trial.
_UNMANAGED = {"searcher": {"name": "single", "metric": "unmanaged"}}


@dataclass(frozen=True)
class Draft:
    """A request for a new experiment.

    Attributes:
        config: YAML text.
        files: the experiment's code.
        activate: whether it starts at once; otherwise it is created paused.
        parent_id: the experiment whose code is used if `files` is empty.
        provenance: where the request comes from; empty if it is unknown.
        project_id: the project in which it is put; None for that of the config, of the parent, or the first one.
        template: name of a template below the config; None for that of the config, or none.
    """

    config: str
    files: Sequence[FileEntry] = ()
    activate: bool = True
    parent_id: int | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    project_id: int | None = None
    template: str | None = None


class Experiments:
    """Creates, changes and deletes experiments.

    Args:
        store: the database.
        bundles: the store of the experiments' code.
        default_storage: the `checkpoint_storage` section of configs that have none.
        pool: where trials run.
    """

    def __init__(
        self, store: Store, bundles: ContextStore, default_storage: Mapping[str, Any], pool: ResourcePool
    ) -> None:
        self._store = store
        self._bundles = bundles
        self._default_storage = default_storage
        self._pool = pool
        self._find_template = finder(store)

    def load_placed(
        self,
        raw: str | Mapping[str, Any],
        project_id: int | None = None,
        parent_id: int | None = None,
        template: str | None = None,
    ) -> tuple[LoadedConfig[ExperimentConfig], Place]:
        """Validate the config of a new experiment; return it with the place where the experiment is put.

        Args:
            raw: YAML text, or its content.
            project_id: the project that the request names; None if it names none.
            parent_id: the experiment from which it is forked; None if it is not.
            template: name of the template that the request names; None if it names none.

        Raises:
            ApiError: the config is invalid, the template does not exist, or the workspace or project takes no
                experiments.
        """
        layers = (self._find_template(template),) if template else ()
        loaded = self._parse(raw, layers)
        with self._store.reading() as session:
            parent = None if parent_id is None else find_experiment(session, parent_id)
            place = place_of(session, loaded.config, project_id, parent)
        if place.checkpoint_storage is not None:
            # Parsing takes long, so it is repeated only if there is another default.
            loaded = self._parse(raw, layers, default_storage=place.checkpoint_storage)
        self._refuse_unusable(loaded.config)
        return loaded, place

    def load(
        self, raw: str | Mapping[str, Any], layers: Sequence[Mapping[str, Any]] = ()
    ) -> LoadedConfig[ExperimentConfig]:
        """Validate a config for this master.

        Args:
            raw: YAML text, or its content.
            layers: values of fields that `raw` does not set, before the defaults, highest priority first.

        Raises:
            InvalidArgumentError: the config is invalid; the message names all problems.
        """
        loaded = self._parse(raw, layers)
        self._refuse_unusable(loaded.config)
        return loaded

    def _refuse_unusable(self, config: ExperimentConfig) -> None:
        """Refuse a valid config that cannot be run here."""
        refuse_large_config(config.to_dict())
        self._pool.refuse_oversize("resources.slots_per_trial", config.resources.slots_per_trial)
        refuse_impossible_environment(config.environment, self._pool)
        self._refuse_unshared_storage(config)
        self._refuse_blocked_storage(config)

    def _refuse_unshared_storage(self, config: ExperimentConfig) -> None:
        section = config.checkpoint_storage.to_dict()
        if self._pool.is_one_machine or any(
            section.get(name) != value for name, value in self._default_storage.items()
        ):
            return
        raise InvalidArgumentError(
            f"`checkpoint_storage` must be set: trials run on several machines ({self._pool.description}), which do "
            "not share the default, a directory of the master's machine. Name a storage that all of them reach: "
            "`s3`, `gcs`, `azure`, `shared_fs`, or a `directory` that is mounted on all of them."
        )

    def _refuse_blocked_storage(self, config: ExperimentConfig) -> None:
        place = storage.from_config(config.checkpoint_storage.to_dict())
        # On several machines it may be there, on the others.
        if not self._pool.is_one_machine or not isinstance(place, storage.DirectoryStorage):
            return
        obstacle = place.obstacle()
        if obstacle is not None:
            raise InvalidArgumentError(f"`checkpoint_storage` cannot be used: {obstacle}.")

    def _parse(
        self,
        raw: str | Mapping[str, Any],
        layers: Sequence[Mapping[str, Any]] = (),
        *,
        alone: bool = False,
        default_storage: Mapping[str, Any] | None = None,
    ) -> LoadedConfig[ExperimentConfig]:
        if isinstance(raw, str):
            _refuse_long(raw)
        try:
            loaded = load_experiment_config(
                raw,
                default_storage=default_storage or self._default_storage,
                alone=alone,
                layers=layers,
                find_template=self._find_template,
            )
            search.from_config(loaded.config)
            storage.from_config(loaded.config.checkpoint_storage.to_dict())
        except ConfigError as error:
            raise InvalidArgumentError(str(error)) from None
        return loaded

    def create(self, owner_id: int, draft: Draft) -> tuple[int, tuple[str, ...]]:
        """Create an experiment with its first trials; return its number, and notices for the user.

        Raises:
            InvalidArgumentError: the config or the files cannot be used; nothing is stored.
            NotFoundError: the parent, the workspace or the project does not exist.
            FailedPreconditionError: the project takes no experiments.
        """
        loaded, place = self.load_placed(draft.config, draft.project_id, draft.parent_id, draft.template)
        config = loaded.config
        check_record(draft.provenance)
        files = without_copied_secrets(draft.files, secret_values(load_yaml(loaded.original)))
        context, size = self._bundles.add(files)
        with self._store.writing() as tx:
            # The garbage collector may have deleted the bundle since `add`, together with the last experiment that
            # used it. From here it cannot: it checks in a transaction whether a bundle is used, and this transaction
            # holds the lock of writers until the new row is committed.
            self._bundles.add_missing(context, files)
            # Meanwhile it may have been archived.
            refuse_closed(tx, find_project(tx, place.project_id))
            if draft.parent_id is not None and context is None:
                parent = find_experiment(tx, draft.parent_id)
                context, size = parent.context, parent.context_size
            experiment = _row(
                owner_id,
                loaded,
                state=states.ACTIVE if draft.activate else states.PAUSED,
                project_id=place.project_id,
                parent_id=draft.parent_id,
                context=context,
                context_size=size,
                warm_start_uuid=_warm_start(tx, config),
            )
            tx.add(experiment)
            tx.flush()
            store_record(tx, subject_of("experiment", experiment.id), draft.provenance)
            ExperimentController(tx, experiment).begin()
            return experiment.id, loaded.notices

    def create_unmanaged(
        self, owner_id: int, text: str, external_id: str | None = None, project_id: int | None = None
    ) -> tuple[int, tuple[str, ...]]:
        """Create an unmanaged experiment, or find the existing one with `external_id`.

        Args:
            owner_id: number of the user.
            text: the config as YAML text.
            external_id: a name chosen by the script; None creates a new experiment in each call.
            project_id: the project of a new one; None for that of the config, or the first one.

        Returns:
            The experiment's number, and notices for the user.

        Raises:
            ApiError: the config or the project cannot be used; nothing is stored.
        """
        loaded = self.load_unmanaged(text)
        with self._store.writing() as tx:
            # Looked up and added in one transaction: two scripts with the same `external_id` get one experiment.
            known = None if external_id is None else self.find_unmanaged(tx, external_id)
            if known is not None:
                return known, ()
            return self.add_unmanaged(tx, owner_id, loaded, external_id, project_id), loaded.notices

    def load_unmanaged(self, text: str) -> LoadedConfig[ExperimentConfig]:
        """Validate the config of an unmanaged experiment.

        Raises:
            InvalidArgumentError: it cannot be used.
        """
        return self._parse(text, (_UNMANAGED,), alone=True)

    @staticmethod
    def find_unmanaged(session: Session, external_id: str) -> int | None:
        """Return the number of the experiment with an external id, None if there is none."""
        return session.scalar(select(ExperimentRow.id).where(ExperimentRow.external_id == external_id))

    @staticmethod
    def add_unmanaged(
        tx: Transaction,
        owner_id: int,
        loaded: LoadedConfig[ExperimentConfig],
        external_id: str | None,
        project_id: int | None = None,
    ) -> int:
        """Add an unmanaged experiment and return its number; the arguments are those of `create_unmanaged`."""
        experiment = _row(
            owner_id,
            loaded,
            project_id=place_of_unmanaged(tx, owner_id, loaded.config, project_id),
            state=states.ACTIVE,
            is_unmanaged=True,
            external_id=external_id,
        )
        tx.add(experiment)
        tx.flush()
        return experiment.id

    def continue_(self, experiment_id: int, override: str = "") -> tuple[str, ...]:
        """Continue an ended experiment; return notices for the user.

        Args:
            experiment_id: number of the experiment.
            override: YAML text of changes to its config; only experiments with the searcher ``single`` may change.

        Raises:
            FailedPreconditionError: it has not ended, or no trial is left to run.
            InvalidArgumentError: the changed config is invalid.
        """
        changes = _read_changes(override)
        with self._store.writing() as tx:
            experiment = find_experiment(tx, experiment_id)
            continuing.check_continuable(experiment)
            notices: tuple[str, ...] = ()
            if changes:
                notices = self._override(experiment, changes)
            continuing.go_on(tx, experiment)
        return notices

    def _override(self, experiment: ExperimentRow, changes: Mapping[str, Any]) -> tuple[str, ...]:
        if not continuing.is_single(experiment):
            raise InvalidArgumentError(
                "Only the config of an experiment with the searcher `single` may change when it is continued."
            )
        searcher = changes.get("searcher")
        method = searcher.get("name") if isinstance(searcher, Mapping) else None
        # Checked first: the rest would be validated by the rules of the other method.
        if method not in (None, "single"):
            raise InvalidArgumentError(f"`searcher.name` must stay `single`, received {method!r}.")
        loaded = self.load(changes, layers=(experiment.config,))
        config = loaded.config
        before = experiment.config["searcher"]
        for name in ("source_trial_id", "source_checkpoint_uuid"):
            if getattr(config.searcher, name) != before.get(name):
                raise InvalidArgumentError(
                    f"`searcher.{name}` cannot change: a continued experiment resumes from its own checkpoint. "
                    "Fork it to start from another checkpoint."
                )
        experiment.config = config.to_dict()
        experiment.name, experiment.description = config.name, config.description or ""
        experiment.labels = list(config.labels)
        return loaded.notices

    def change(self, experiment_id: int, changes: Mapping[str, Any]) -> None:
        """Change fields that may change after the creation; None leaves a field as it is.

        Args:
            experiment_id: number of the experiment.
            changes: `name`, `description`, `labels`, `notes`, `resources` (`max_slots`, `weight`,
                `priority`), `checkpoint_storage` (`save_*`), `if_unchanged` (texts that the caller has read).

        Raises:
            NotFoundError: the experiment does not exist, or has ended and `resources` is given.
            InvalidArgumentError: a value is invalid.
            AbortedError: a text is not as `if_unchanged` says.
        """
        with self._store.writing() as tx:
            experiment = find_experiment(tx, experiment_id)
            refuse_overtaken(experiment, f"experiment {experiment.id}", changes.get("if_unchanged"))
            config = dict(experiment.config)
            for name in ("name", "description"):
                if changes.get(name) is not None:
                    config[name] = changes[name]
            if changes.get("labels") is not None:
                config["labels"] = _clean_labels(changes["labels"])
            for section in ("resources", "checkpoint_storage"):
                given = {
                    key: value for key, value in (changes.get(section) or {}).items() if value is not None
                }
                config[section] = {**config[section], **given}
            _check_changes(experiment, changes)
            if not experiment.is_unmanaged:
                refuse_large_config(config)
            if changes.get("notes") is not None:
                experiment.notes = changes["notes"]
            experiment.config = config
            experiment.name, experiment.description = config["name"], config["description"] or ""
            experiment.labels = list(config["labels"])
            if changes.get("resources"):
                tx.notify(WORK)
            if changes.get("checkpoint_storage") and experiment.state in states.TERMINAL:
                experiment.is_pruning_due = True
                tx.notify(DELETIONS)

    def relabel(self, experiment_id: int, change: Callable[[set[str]], set[str]]) -> list[str]:
        """Change an experiment's labels in one transaction, and return them.

        Args:
            experiment_id: number of the experiment.
            change: returns the new labels for the current labels.

        Raises:
            NotFoundError: the experiment does not exist.
            InvalidArgumentError: a label is blank.
        """
        with self._store.writing() as tx:
            experiment = find_experiment(tx, experiment_id)
            before = set(experiment.labels)
            after = change(before)
            _clean_labels(after - before)
            labels = sorted(after)
            experiment.labels = labels
            experiment.config = {**experiment.config, "labels": labels}
        return labels

    def archive(self, experiment_id: int, *, archived: bool) -> None:
        """Archive an ended experiment, which hides it in lists, or unarchive it.

        Raises:
            FailedPreconditionError: it has not ended, or is archived or unarchived already.
        """
        with self._store.writing() as tx:
            set_archived(tx, find_experiment(tx, experiment_id), archived=archived)

    def delete(self, experiment_id: int) -> None:
        """Have the garbage collector delete an ended experiment, with its trials, checkpoints and logs.

        Raises:
            FailedPreconditionError: it has not ended.
        """
        with self._store.writing() as tx:
            begin_deletion(tx, find_experiment(tx, experiment_id))


def _clean_labels(labels: Iterable[str]) -> list[str]:
    """Return labels as in a config: sorted, without duplicates."""
    unique = sorted(set(labels))
    if any(not label.strip() for label in unique):
        raise InvalidArgumentError("A label must not be blank.")
    return unique


def _refuse_long(text: str) -> None:
    if len(text) > _MOST_CONFIG_BYTES:
        # Parsing YAML takes a second for every few ten thousand characters.
        raise InvalidArgumentError(
            f"A config may have {_MOST_CONFIG_BYTES >> 20} MiB, received {len(text)} characters."
        )


def _read_changes(text: str) -> dict[str, Any]:
    _refuse_long(text)
    try:
        return load_yaml(text, may_be_empty=True)
    except ConfigError as error:
        raise InvalidArgumentError(str(error)) from None


def _row(owner_id: int, loaded: LoadedConfig[ExperimentConfig], **fields: Any) -> ExperimentRow:
    config = loaded.config
    return ExperimentRow(
        owner_id=owner_id,
        job_id=str(uuid.uuid4()),
        name=config.name,
        description=config.description or "",
        labels=list(config.labels),
        config=config.to_dict(),
        original_config=hide_secrets(loaded.original),
        start_time=now(),
        **fields,
    )


def _check_changes(experiment: ExperimentRow, changes: Mapping[str, Any]) -> None:
    name = changes.get("name")
    if name is not None and not name.strip():
        raise InvalidArgumentError("The name must not be blank.")
    resources = {key: value for key, value in (changes.get("resources") or {}).items() if value is not None}
    if resources and experiment.state in states.TERMINAL:
        raise NotFoundError(f"experiment '{experiment.id}' not found among experiments that use resources")
    per_trial = experiment.config["resources"]["slots_per_trial"]
    if resources.get("max_slots", per_trial) < per_trial:
        raise InvalidArgumentError(
            f"`max_slots` must be at least {per_trial}, the number of slots of one trial."
        )
    if not 1 <= resources.get("priority", 1) <= 99:
        raise InvalidArgumentError("`priority` must be 1 to 99.")
    weight = resources.get("weight", 1)
    if not (math.isfinite(weight) and weight > 0):
        raise InvalidArgumentError(f"`weight` must be a number above 0, received {weight}.")
    storage_changes = changes.get("checkpoint_storage") or {}
    if any(value is not None and value < 0 for value in storage_changes.values()):
        raise InvalidArgumentError("The numbers of checkpoints to keep must be 0 or more.")


def _warm_start(session: Session, config: ExperimentConfig) -> str | None:
    """Return the checkpoint from which every trial of a new experiment starts; None for none."""
    if config.searcher.source_checkpoint_uuid is not None:
        uuid_ = config.searcher.source_checkpoint_uuid
        row = session.get(CheckpointRow, uuid_)
        if row is None or row.state != checkpoints.COMPLETED or row.pending_deletion is not None:
            raise InvalidArgumentError(
                f"`searcher.source_checkpoint_uuid`: there is no complete checkpoint {uuid_!r}."
            )
        return row.uuid
    trial_id = config.searcher.source_trial_id
    if trial_id is None:
        return None
    if session.scalar(select(TrialRow.id).where(TrialRow.id == trial_id)) is None:
        raise InvalidArgumentError(f"`searcher.source_trial_id`: there is no trial {trial_id}.")
    latest = checkpoints.latest_checkpoint(session, trial_id)
    if latest is None:
        raise InvalidArgumentError(
            f"`searcher.source_trial_id`: trial {trial_id} has no complete checkpoint."
        )
    return latest.uuid
