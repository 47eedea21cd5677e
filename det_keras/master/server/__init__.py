"""HTTP: the address, the checks that each call passes, messages in and responses out."""
