"""Python code: a file's consumers are found, each is walked through as for one message, and its trace is judged."""
