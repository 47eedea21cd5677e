"""Runs: what is done with many trials and experiments, and with their logs."""
