"""The fields of a config about what runs, where, and what is kept of it."""
