"""The contract of stores: what `effectonce.contracts.Port` says, as cases for sync and async ports."""
