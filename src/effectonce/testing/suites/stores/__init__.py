"""The contract of stores, as cases for sync and async ports: what `effectonce.contracts.Port` demands."""
