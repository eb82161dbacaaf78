"""Group commit: operations that wait while a round trip is under way go out together in the next.

There is no timer, so a lone call waits for nothing. A group has one queue and one kind of caller: `tasks.AsyncGroup`
serves the tasks of one event loop, `threads.ThreadGroup` serves threads. `batches` says which operations may go out
together and who gets which reply; `send_batch` says what happens when a batch fails. Both groups use both.
"""
