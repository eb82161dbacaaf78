"""What the tests stand on: real servers of our own (`servers`) and a network that misbehaves (`proxy`)."""
