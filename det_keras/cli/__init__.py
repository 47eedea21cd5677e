"""The `det` command: experiments, trials, checkpoints, jobs and the embedded master from a shell.

One file per noun. `det --help` must be fast, so slow modules (HTTP, tables, configs) are imported inside of the
functions that use them.
"""
