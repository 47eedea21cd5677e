"""The records of checkpoints, and which of them are kept."""
