"""Small pure values (durations, URLs, identities, fingerprints, clocks) that depend on nothing but `errors`."""
