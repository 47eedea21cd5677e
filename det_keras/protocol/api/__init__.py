"""The calls of a master's REST API that the product makes; every path and body is defined only here."""

from det_keras.protocol.api.accounts import Accounts
from det_keras.protocol.api.checkpoints import Checkpoints
from det_keras.protocol.api.experiments import Experiments
from det_keras.protocol.api.imports import Imports
from det_keras.protocol.api.jobs import GenericTasks, Jobs
from det_keras.protocol.api.registry import Models
from det_keras.protocol.api.tasks import Logs, Tasks
from det_keras.protocol.api.teams import Projects, Templates, Tokens, Webhooks, Workspaces
from det_keras.protocol.api.transport import Transport
from det_keras.protocol.api.trials import Trials

__all__ = ["Api"]


class Api:
    """The calls of one master.

    Args:
        transport: a session with the master, `det_keras.client.Session`.

    Attributes:
        accounts: the caller and the cluster.
        checkpoints: of all experiments.
        experiments: of all users.
        generic_tasks: generic jobs of a Determined master.
        imports: runs of other trackers; only our master has these calls.
        jobs: generic jobs of our master.
        models: the model registry.
        projects: of all workspaces.
        tasks: tasks of trials and jobs, and their allocations.
        templates: parts of configs.
        tokens: access tokens.
        trials: of all experiments.
        webhooks: addresses to which events are sent.
        workspaces: of all users.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.accounts = Accounts(transport)
        self.checkpoints = Checkpoints(transport)
        self.experiments = Experiments(transport)
        self.generic_tasks = GenericTasks(transport)
        self.imports = Imports(transport)
        self.jobs = Jobs(transport)
        self.models = Models(transport)
        self.projects = Projects(transport)
        self.tasks = Tasks(transport)
        self.templates = Templates(transport)
        self.tokens = Tokens(transport)
        self.trials = Trials(transport)
        self.webhooks = Webhooks(transport, self.accounts)
        self.workspaces = Workspaces(transport)

    def trial_logs(self, trial_id: int) -> Logs:
        """Return the log of a trial."""
        return Logs.of_trial(self._transport, trial_id)

    def task_logs(self, task_id: str) -> Logs:
        """Return the log of a task."""
        return Logs.of_task(self._transport, task_id)
