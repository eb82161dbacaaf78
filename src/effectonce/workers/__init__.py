"""What a `Worker` is made of: routes, intake, one line per queue, slots that run handlers."""
