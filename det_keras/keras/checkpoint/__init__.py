"""The content of a checkpoint: variables, model file, random states, callbacks; taken, written and restored."""
