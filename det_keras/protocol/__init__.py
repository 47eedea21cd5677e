"""What clients, training processes and the master exchange: names, states, values and calls."""
