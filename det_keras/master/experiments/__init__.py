"""Experiments: created and changed, and moved by their controllers."""
