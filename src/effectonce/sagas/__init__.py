"""Sagas: several steps that no transaction can hold together, and the compensations that undo them."""

from .saga import Saga as Saga
from .steps import Done as Done
from .steps import Step as Step
