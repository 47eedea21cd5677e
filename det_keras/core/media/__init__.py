"""Media that a training logs: converted to files here, stored in the background, and reported."""
