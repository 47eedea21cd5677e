"""Makes the process that forks a master's supervisors a warm one: Python imports this module at its start.

It does nothing in other programs that find it in PYTHONPATH.
"""

import sys

if sys.orig_argv[1:] == ["-m", "det_keras.launch.fork_server"]:
    import os
    from pathlib import Path

    # Without a door it is as any other: its `sys.path` is not touched either.
    door = os.environ.get("DET_KERAS_TEST_WARM_DOOR")
    if door and Path(door).exists():
        sys.path.insert(0, str(Path(__file__).parents[2]))
        from warm import trials

        trials.prepare()
