"""Experiments: creation, changes, and the controllers that decide about their trials."""
