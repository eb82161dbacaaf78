"""Sessions: the caller's own connection, whatever driver made it, as a `contracts.DriverSession`."""

from .adapters import is_connection as is_connection
from .adapters import register_adapter as register_adapter
from .adapters import session_on as session_on
from .driver_adapter import DriverAdapter as DriverAdapter
from .pending import Pending as Pending
from .sql_errors import connect_error as connect_error
from .sql_errors import is_duplicate_key as is_duplicate_key
from .sql_errors import lacks_unique_key as lacks_unique_key
