"""One module per framework: the guard in the shape that the framework expects. Each needs its framework, no other."""
