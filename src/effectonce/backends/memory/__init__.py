"""Records and queues in this process."""
