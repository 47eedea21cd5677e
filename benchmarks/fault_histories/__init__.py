"""Histories of a master, its trials and its clients under drawn faults, and the oracle that judges them.

`plan` draws a history from a seed. `world` has the data root with its master, `disk` and `proxy` are what fails besides
processes, `faults` lets them fail, `clients` send requests and note what was acknowledged (`journal`), `task_scripts` is
what trials and jobs run, and `oracle` compares the end with what was acknowledged. `history` runs all of it.
"""
