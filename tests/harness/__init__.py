"""The test harness: real servers (`servers`), a proxy that injects network faults (`proxy`), and waiting."""
