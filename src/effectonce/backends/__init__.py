"""One folder per technology: its connection, store, broker and dead letters, with its SQL and Lua beside them."""
