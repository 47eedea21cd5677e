"""The records of checkpoints, and the selection of checkpoints to keep."""
