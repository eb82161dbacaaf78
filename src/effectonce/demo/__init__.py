"""What `effectonce demo` runs: one payment delivered twice, and every mode under kills."""
