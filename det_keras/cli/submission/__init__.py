"""What `det experiment create` and `det job run` send, or run at once: a config and a directory of files."""
