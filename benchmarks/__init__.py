"""Every performance claim of effectonce, measured beside the raw driver and its peers in one run.

`make bench`, or ``python -m benchmarks guard --json FILE``. Figures are ratios within one interleaved run: on a
shared machine absolute rates move by half between runs, ratios by a tenth.
"""
