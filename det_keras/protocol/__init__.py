"""What travels between a client, a training process and the master: names, states, values and calls."""
