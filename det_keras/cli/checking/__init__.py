"""`det cluster check`: what works with the configured master, and what to do about the rest."""
