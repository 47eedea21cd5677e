"""The fields of a config that describe what runs, where, and what is stored."""
