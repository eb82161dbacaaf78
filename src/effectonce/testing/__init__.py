"""The test kit for users and authors of backends. Hypothesis strategies are in ``effectonce.testing.strategies``."""

from .broker import SettledDelivery as SettledDelivery
from .broker import TestBroker as TestBroker
from .chaos import ChaosBroker as ChaosBroker
from .chaos import ChaosStore as ChaosStore
from .clock import ManualClock as ManualClock
from .http_subject import HttpRequest as HttpRequest
from .idempotence import aassert_idempotent as aassert_idempotent
from .idempotence import assert_idempotent as assert_idempotent
from .override import override as override
from .trials import Report as Report
from .trials import Trial as Trial
