"""One module per store. Each imports the contracts and its one driver; none imports another."""
