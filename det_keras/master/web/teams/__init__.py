"""Pages of what the users of a master share."""
