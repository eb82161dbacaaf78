"""The contract of brokers, as cases: what `effectonce.contracts.Publisher`, `Consumer` and `DeadLetters` demand."""
