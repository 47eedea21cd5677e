"""Tasks on slots: their allocations, scheduling, environment and logs; generic jobs."""
