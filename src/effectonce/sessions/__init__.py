"""Sessions: the caller's own connection, whatever driver made it, as a `contracts.DriverSession`."""

from .base_session import BaseDriverSession as BaseDriverSession
from .pending import AwaitedCalls as AwaitedCalls
from .pending import Pending as Pending
from .registry import is_connection as is_connection
from .registry import register_session as register_session
from .registry import session_on as session_on
from .registry import wrap_sessions as wrap_sessions
from .sql_errors import connect_error as connect_error
from .sql_errors import is_duplicate_key as is_duplicate_key
from .sql_errors import lacks_unique_key as lacks_unique_key
from .sql_errors import outage_error as outage_error
