"""Runs of other trackers: read from their files, and stored on a master as unmanaged experiments."""
