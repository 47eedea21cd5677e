"""The callbacks that `fit` injects, each with one task; `base` defines their contract."""
