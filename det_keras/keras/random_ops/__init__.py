"""Random ops of TensorFlow: drawn from states that can be saved, or named if they have none."""
