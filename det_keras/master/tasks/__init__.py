"""Tasks on slots: allocations, scheduling, environment and logs; generic jobs."""
