"""What happened, for those who watch: each sink is switched on by one line, and costs nothing where it is not.

    EventLogger().watch(store)       # telemetry.logging: one line for each event
    Metrics().watch(worker)          # telemetry.prometheus
    Tracing().watch(worker)          # telemetry.opentelemetry

`watch` takes a `Store`, a `Worker` or a `Relay`; a sink may watch many. `Worker(…, listen="127.0.0.1:9464")` serves the
metrics beside /healthz and /readyz.
"""
