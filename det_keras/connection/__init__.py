"""Which master a user means, and with which token: the rules of the `det` command, a script and a notebook."""
