"""The guard: `once` for a function, `block` for a piece of code, `dispatcher` for a loop that you write yourself."""
