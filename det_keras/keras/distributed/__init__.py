"""Training on several workers: exchanges over Horovod, and the replica of the model on each worker."""
