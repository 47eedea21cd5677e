"""The commands about what the users of a master share."""
