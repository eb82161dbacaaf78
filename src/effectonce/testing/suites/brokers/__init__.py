"""The contract of brokers: what `effectonce.contracts.Publisher`, `Consumer` and `DeadLetters` say, as cases."""
