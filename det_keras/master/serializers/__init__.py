"""Rows of the database as the objects that travel."""
