"""The demos of `effectonce demo`: one payment delivered twice, and all modes with workers that are killed."""
