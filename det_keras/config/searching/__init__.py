"""The fields of a config that describe what is searched, by which method, and for how long."""
