"""The embedded master: experiments, trials, metrics, checkpoints and slots of one user on one machine."""
