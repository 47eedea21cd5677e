"""What a machine has or lacks that must change no result: variables, and its speed.

What a test needs it sets itself; what is removed here is what a shell, a task of a cluster or a desktop may have set.
"""

from __future__ import annotations

import re
import socket
from collections.abc import MutableMapping

__all__ = ["allow_slow_examples", "neutralize"]

_REMOVED = re.compile(
    # Of tasks and of users of a cluster; DET_KERAS_TEST_* choose what is tested.
    r"DET_(?!KERAS_TEST_).*"
    # Of a training on many workers.
    r"|(HOROVOD|OMPI|PMI|PMIX|SLURM|RAY)_.*|(CROSS_|LOCAL_)?(WORLD_)?(RANK|SIZE)|TF_CONFIG|KERAS_BACKEND"
    # Of a terminal. Width and colours of what is printed follow from them.
    r"|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|CLICOLOR(_FORCE)?|PY_COLORS|TTY_(COMPATIBLE|INTERACTIVE)"
    # Of a Git hook, which name the repository that it runs in.
    r"|GIT_.*"
    # Accounts of object stores, and their endpoints.
    r"|(AWS|AZURE|GOOGLE|GCLOUD|GCSFS)_.*|STORAGE_EMULATOR_HOST"
)
_PROXY = re.compile(r"(http|https|all|no)_proxy", re.IGNORECASE)
# httpx reads the names and addresses, others the network.
_OURSELVES = ("localhost", "127.0.0.0/8", "127.0.0.1", "::1", socket.gethostname())


def neutralize(environment: MutableMapping[str, str]) -> None:
    """Remove variables that change what the package or a library does.

    Proxies are kept, because some tests install packages, but not for this machine's own addresses.
    """
    for name in [name for name in environment if _REMOVED.fullmatch(name)]:
        del environment[name]
    if any(_PROXY.fullmatch(name) for name in environment):
        for name in ("no_proxy", "NO_PROXY"):
            environment[name] = ",".join(filter(None, (environment.get(name), *_OURSELVES)))


def allow_slow_examples() -> None:
    """Let Hypothesis take its time: by default an example fails after 200 ms, which a loaded machine needs."""
    try:
        from hypothesis import HealthCheck, settings
    except ImportError:  # the tests of the built package need only pytest
        return
    settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")
