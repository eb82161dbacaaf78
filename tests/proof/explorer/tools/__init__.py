"""One system under test for each tool beside the guard: how it is used, what it speaks to, and what it must come to."""
