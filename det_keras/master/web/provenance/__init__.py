"""What the pages show of where runs and checkpoints come from."""
