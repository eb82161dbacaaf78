"""What a `Relay` is made of: sending one lease, one lane of leases, and a session of lanes."""
