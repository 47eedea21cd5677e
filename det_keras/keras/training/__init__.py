"""A training of a script, whoever drives it: its progress, its boundaries, its state, and where it resumes."""
