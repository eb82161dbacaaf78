"""One system under test for each tool beside the guard: how it is used, what it talks to, and how its end is judged."""
