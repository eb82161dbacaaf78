"""The algorithms: pure, or over injected ports only. No driver, no broker, no framework."""
