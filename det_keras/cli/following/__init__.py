"""What the terminal shows of a running experiment: its trials, metrics and logs."""
