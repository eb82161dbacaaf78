"""The life of one guarded call, written once for sync and async code.

`begin` claims the run or replays it, the guard calls the handler, and `finish` records the success, or `abort` the
failure. All three are coroutines over a `StoreClient`; sync code runs them with `run_sync`. The guard calls the handler
between them, and never inside a coroutine of effectonce: there its ``StopIteration`` would become a ``RuntimeError``.
"""
