"""The callbacks that `fit` injects, one job each; `base` states their contract."""
