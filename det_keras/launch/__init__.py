"""Launchers of processes: the supervisor above a task, and the workers of a distributed one."""
