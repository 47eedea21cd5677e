"""The database: tables, sessions, transactions and migrations; waking waiting requests after a commit."""
