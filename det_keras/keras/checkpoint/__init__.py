"""The content of a checkpoint: variables, model file, random states and callbacks; captured, written and restored."""
