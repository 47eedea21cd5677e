"""The parts of a config that say what is searched, by which method, and for how long."""
