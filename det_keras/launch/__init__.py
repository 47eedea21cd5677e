"""Process launchers: the supervisor of a task, and the launchers of distributed ranks."""
