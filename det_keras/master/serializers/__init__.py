"""Converts rows of the database to the JSON objects of the REST API."""
