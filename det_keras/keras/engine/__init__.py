"""The implementation of `context.fit`: segments of the batch plan, boundaries between batches, resuming."""
