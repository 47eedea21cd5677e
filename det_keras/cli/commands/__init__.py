"""The commands of `det`, one file for each noun."""
