"""How records, intents, sagas and dead letters are shown to people: one wording, in the command line and in the
dashboard."""
