"""A Ray cluster whose machines are processes of this one."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from warm.trials import open_door, variables

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


class Machines:
    """A head without slots, and nodes that tests add and take away.

    Args:
        slots: number of slots of each node at the beginning.
    """

    def __init__(self, *slots: int) -> None:
        from ray.cluster_utils import Cluster

        # Where the machines' fork servers ask for warm tasks: in vain, except in `warm_tasks`.
        self._folder = tempfile.TemporaryDirectory(prefix="door-")
        self._door = Path(self._folder.name) / "door"
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "node_name": "head"})
        self._nodes: dict[str, Any] = {}
        self._count = 0
        for count in slots:
            self.add(count)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    @property
    def session(self) -> Path:
        """The folder with the files of this cluster."""
        return Path(self._cluster.head_node.get_session_dir_path())

    @property
    def names(self) -> list[str]:
        return list(self._nodes)

    def add(self, slots: int = 2, **more: Any) -> str:
        """Add a node and return its name."""
        more = {"env_vars": variables(self._door), **more}
        name = f"node-{self._count}"
        self._count += 1
        self._nodes[name] = self._cluster.add_node(num_cpus=slots, node_name=name, **more)
        return name

    def kill(self, name: str) -> None:
        """Kill a node with all that runs on it."""
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def warm_tasks(self) -> contextlib.AbstractContextManager[None]:
        """Let tasks that start meanwhile be forks with TensorFlow (`warm/trials.py`), on whatever machine."""
        return open_door(self._door)

    def close(self) -> None:
        self._cluster.shutdown()
        self._folder.cleanup()
        with contextlib.suppress(OSError):
            shutil.rmtree(Path(tempfile.gettempdir()) / f"det_keras-{os.getuid()}")
