"""The model registry: named models, and their versions, each of which is a checkpoint."""
