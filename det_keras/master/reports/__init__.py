"""Reports of metrics: stored in batches, summarised, and read as curves."""
