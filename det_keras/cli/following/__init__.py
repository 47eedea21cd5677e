"""The display of a running experiment in the terminal: its trials, metrics and logs."""
