"""The background loops: dispatching and launching tasks, and deleting what is no longer kept."""
