"""Processes that have imported TensorFlow: forked from one server, in place of interpreters that import it again.

The import takes seconds of processor time, more than most trainings of the tests. So a server imports TensorFlow, Keras
and this package once, without using them, and forks a child for each process that a test needs (`server.py`):

- `run` and `Popen` start a Python program, like those of `subprocess` (`program.py`, `processes.py`). The ranks of a
  launcher that is started so are forks too (`ranks.py`);
- `warm_trials` lets a master's trials and jobs be forks (`trials.py`);
- `ForkServer.run` calls a function of a test's module (`calls.py`).

Tests of the import, of the interpreter's options or of the command line of a process start an interpreter with
`subprocess`.
"""

from warm.calls import ForkServer, Send
from warm.processes import Popen, run
from warm.trials import SITE, warm_trials

__all__ = ["SITE", "ForkServer", "Popen", "Send", "run", "warm_trials"]
