"""The plots of searches and reports: what they show, as plain data."""
