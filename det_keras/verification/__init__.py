"""Shows whether a script resumes exactly: it is trained, killed, started again, and the states are compared."""
