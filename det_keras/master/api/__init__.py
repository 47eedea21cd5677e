"""The routes, one file per section of the protocol."""
