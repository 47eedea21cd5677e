"""The database: tables, sessions and transactions, migrations, and the waking of those who wait for a commit."""
