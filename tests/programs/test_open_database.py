"""Which errors at the start waiting cannot mend."""

import socket
import ssl

import asyncpg
import pytest

from controller.open_database import reason_to_end

DSN = "postgresql://u:sesame@h:5432/db"


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "refused"),
        FileNotFoundError(2, "no socket"),
        socket.gaierror(-2, "Name or service not known"),
        TimeoutError(),
        asyncpg.CannotConnectNowError("the database system is starting up"),
        asyncpg.TooManyConnectionsError("too many clients"),
        asyncpg.ReadOnlySQLTransactionError("in recovery"),
        asyncpg.InternalClientError("cut"),
    ],
)
def test_what_may_pass_is_waited_for(error: Exception) -> None:
    assert reason_to_end(error, DSN) is None


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (asyncpg.InvalidPasswordError("password authentication failed"), "check user and password"),
        (asyncpg.InvalidAuthorizationSpecificationError("no pg_hba.conf entry"), "check user and password"),
        (asyncpg.InvalidCatalogNameError('database "db" does not exist'), "create it"),
        (asyncpg.InsufficientPrivilegeError("permission denied for schema public"), "owner"),
        (asyncpg.DuplicateTableError('relation "workers" already exists'), "use an empty database"),
        (ssl.SSLCertVerificationError("self-signed"), "sslrootcert"),
        (ValueError("invalid literal for int() with base 10: 'sesame'"), "percent-encoded"),
        (asyncpg.exceptions.ClientConfigurationError("sesame"), "percent-encoded"),
    ],
)
def test_what_cannot_be_mended_is_said_without_the_password(error: Exception, remedy: str) -> None:
    reason = reason_to_end(error, DSN)
    assert reason is not None
    assert remedy in reason
    assert "sesame" not in reason
