"""Users, their passwords, tokens and logins."""
