"""Pages for people: whole in themselves, nothing is fetched from elsewhere."""
