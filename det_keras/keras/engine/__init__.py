"""What `context.fit` does: segments of the batch plan, boundaries between batches, resuming."""
