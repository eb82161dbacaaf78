"""One module per broker; see `effectonce.contracts`."""
