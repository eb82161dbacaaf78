"""One module per driver: open by URL, adapt the caller's connection, translate the driver's errors."""
