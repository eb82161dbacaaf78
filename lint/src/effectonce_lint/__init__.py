"""The checker: finds consumers whose effects would double, in code and in designs.

Imports nothing of ours and needs no server. ``effectonce-lint PATHS…`` or ``python -m effectonce_lint``.

- `engine`: files, cache, processes; `cli`, `config`, `suppressions`, `fixes`, `explain`, `output`: around it
- `rules`: every rule as data
- `python`: code. A file is scanned for consumers; each is walked through as for one message, following calls inside the
  project, which leaves a trace of effects, look-ups, claims, acks; `checks` decides what is wrong with it
- `designs`: AsyncAPI, tables and lists, Mermaid, Terraform and its like
"""
