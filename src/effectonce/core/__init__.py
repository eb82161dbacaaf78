"""The algorithms behind every tool. They reach a store through its port only: no driver, no broker, no framework."""
