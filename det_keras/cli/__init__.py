"""The `det` command: experiments, trials, checkpoints, jobs and the embedded master from a shell.

One file per noun. `det --help` has to answer at once, so what is heavy (HTTP, tables, configs) is imported
inside of the functions that use it.
"""
