"""The config and the files that `det experiment create` and `det job run` send to a master or run locally."""
