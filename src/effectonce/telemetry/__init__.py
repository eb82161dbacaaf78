"""Sinks for events: logs, metrics, traces and the audit log. Each is switched on by one line, and costs nothing if not.

    EventLogger().watch(store)       # telemetry.logging: one line for each event
    Metrics().watch(worker)          # telemetry.prometheus
    Tracing().watch(worker)          # telemetry.opentelemetry

`watch` takes a `Store`, a `Worker` or a `Relay`; a sink may watch many. `Worker(…, listen="127.0.0.1:9464")` serves the
metrics beside /healthz and /readyz.
"""
