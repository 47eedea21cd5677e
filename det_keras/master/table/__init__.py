"""The table of all trials: which there are, and the filters, orders and groups of a question about them.

`rows` keeps the trials in memory and follows the database, `filters` is the language of filters, and `query` answers a
question with a `Table`.
"""
