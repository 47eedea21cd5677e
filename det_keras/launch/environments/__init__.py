"""Environments of tasks: virtual environments on top of an interpreter, built by the process that starts the task."""
