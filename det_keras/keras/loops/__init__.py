"""Training loops that a script writes by hand: what is tracked, the passes over the data, and the loop itself."""
