"""The meanings of the databases' error codes, by the names that the drivers and the servers' manuals have for them."""

from __future__ import annotations

import pytest
from psycopg import errors
from pymysql.constants import CR, ER

from effectonce.values.sql_error_codes import MYSQL_MEANINGS, SqlErrorMeaning, postgres_meaning

PYMYSQL_CONNECTION_CLOSED = 0
ER_CONNECTION_KILLED = 1927  # of MariaDB, as those over 3000 are of one of the two
ER_CLIENT_INTERACTION_TIMEOUT = 4031
ER_ACCESS_DENIED_NO_PASSWORD_ERROR = 1698
ER_ACCOUNT_HAS_BEEN_LOCKED = 3118
ER_SECURE_TRANSPORT_REQUIRED = 3159
ER_USER_ACCESS_DENIED_FOR_USER_ACCOUNT_BLOCKED_BY_PASSWORD_LOCK = 3955
ER_ACCOUNT_HAS_BEEN_LOCKED_MARIADB = 4151
ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION = 1792
ER_READ_ONLY_MODE = 1836
ER_BINLOG_UNSAFE_ROW_ENGINE = 1665

MYSQL: dict[SqlErrorMeaning, set[int]] = {
    "column_missing": {ER.BAD_FIELD_ERROR},
    "conflict": {ER.LOCK_DEADLOCK, ER.CHECKREAD},
    "connection_lost": {
        PYMYSQL_CONNECTION_CLOSED,
        ER.SERVER_SHUTDOWN,
        ER.NORMAL_SHUTDOWN,
        ER.SHUTDOWN_COMPLETE,
        ER.ABORTING_CONNECTION,
        ER.NET_READ_ERROR,
        ER.NET_READ_INTERRUPTED,
        ER.NET_ERROR_ON_WRITE,
        ER.NET_WRITE_INTERRUPTED,
        ER.NEW_ABORTING_CONNECTION,
        ER_CONNECTION_KILLED,
        CR.CR_SERVER_GONE_ERROR,
        CR.CR_SERVER_LOST,
        CR.CR_SERVER_LOST_EXTENDED,
        ER_CLIENT_INTERACTION_TIMEOUT,
    },
    "database_missing": {ER.BAD_DB_ERROR},
    "duplicate_key": {ER.DUP_ENTRY},
    "key_too_long": {ER.DATA_TOO_LONG},
    "lock_timeout": {ER.LOCK_WAIT_TIMEOUT},
    "login_refused": {
        ER.DBACCESS_DENIED_ERROR,
        ER.ACCESS_DENIED_ERROR,
        ER.HOST_NOT_PRIVILEGED,
        ER.SPECIFIC_ACCESS_DENIED_ERROR,
        ER.NOT_SUPPORTED_AUTH_MODE,
        ER.PROCACCESS_DENIED_ERROR,
        ER_ACCESS_DENIED_NO_PASSWORD_ERROR,
        ER_ACCOUNT_HAS_BEEN_LOCKED,
        ER_SECURE_TRANSPORT_REQUIRED,
        ER_USER_ACCESS_DENIED_FOR_USER_ACCOUNT_BLOCKED_BY_PASSWORD_LOCK,
        ER_ACCOUNT_HAS_BEEN_LOCKED_MARIADB,
    },
    "overloaded": {
        ER.CON_COUNT_ERROR,
        ER.TOO_MANY_USER_CONNECTIONS,
        ER.USER_LIMIT_REACHED,
        ER.DISK_FULL,
        ER.RECORD_FILE_FULL,
        ER.UNKNOWN_COM_ERROR,  # of a Galera node that is not ready
        ER.STATEMENT_TIMEOUT,
        ER.QUERY_TIMEOUT,
        ER.OUT_OF_RESOURCES,
        ER.CANT_CREATE_THREAD,
    },
    "permission_denied": {ER.TABLEACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR},
    "query_killed": {ER.QUERY_INTERRUPTED},
    "read_only": {
        ER.OPTION_PREVENTS_STATEMENT,
        ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION,
        ER_READ_ONLY_MODE,
    },
    "table_missing": {ER.NO_SUCH_TABLE},
    "unsafe_binlog": {ER_BINLOG_UNSAFE_ROW_ENGINE},
}

POSTGRES: list[tuple[type[errors.Error], SqlErrorMeaning]] = [
    (errors.ConnectionException, "connection_lost"),
    (errors.ConnectionDoesNotExist, "connection_lost"),
    (errors.AdminShutdown, "connection_lost"),
    (errors.CrashShutdown, "connection_lost"),
    (errors.CannotConnectNow, "connection_lost"),
    (errors.IdleSessionTimeout, "connection_lost"),
    (errors.IdleInTransactionSessionTimeout, "connection_lost"),
    (errors.SerializationFailure, "conflict"),
    (errors.DeadlockDetected, "conflict"),
    (errors.LockNotAvailable, "lock_timeout"),
    (errors.QueryCanceled, "statement_timeout"),
    (errors.ReadOnlySqlTransaction, "read_only"),
    (errors.InsufficientPrivilege, "permission_denied"),
    (errors.UndefinedColumn, "column_missing"),
    (errors.UndefinedTable, "table_missing"),
    (errors.InvalidSchemaName, "table_missing"),
    (errors.InvalidColumnReference, "no_unique_key"),
    (errors.DuplicatePreparedStatement, "unknown_prepared_statement"),
    (errors.InvalidSqlStatementName, "unknown_prepared_statement"),
    (errors.CharacterNotInRepertoire, "text_refused"),
    (errors.UntranslatableCharacter, "text_refused"),
]


@pytest.mark.parametrize("meaning", MYSQL)
def test_a_number_of_mysql_means_what_its_name_says(meaning: SqlErrorMeaning) -> None:
    assert {number for number, known in MYSQL_MEANINGS.items() if known == meaning} == MYSQL[meaning]


@pytest.mark.parametrize(("error", "meaning"), POSTGRES)
def test_a_state_of_postgres_means_what_its_name_says(error: type[errors.Error], meaning: SqlErrorMeaning) -> None:
    assert error.sqlstate is not None
    assert postgres_meaning(error.sqlstate) == meaning


def test_other_states_of_postgres_mean_nothing_to_us() -> None:
    assert postgres_meaning(errors.UniqueViolation.sqlstate) is None
