"""Histories of a master, its trials and its clients under drawn faults, and the oracle that judges them.

`plan` draws a history from a seed. `world` has the data root with its master, `disk` and `proxy` are what fails besides
processes, and `faults` lets them fail. `clients` send requests and note in a `journal` what was acknowledged.
`task_scripts`, `plain_trial` and `core_trial` are what trials and jobs run. `oracle` compares the end with what was
acknowledged, and `history` runs all of it.
"""
