"""Sagas: several steps that no transaction can hold together, and the compensations that undo them."""
