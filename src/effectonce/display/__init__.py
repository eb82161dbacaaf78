"""The wording of records, intents, sagas and dead letters, which the command line and the dashboard share.

A ``tone`` is the name of a record's state, or "refused": what has it is shown in the colour of that state.
"""
