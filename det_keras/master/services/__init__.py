"""The background loops: dispatching and launching tasks, and garbage collection."""
