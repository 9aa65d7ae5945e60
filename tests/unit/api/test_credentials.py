"""Which credential a request carries, for the gateway and the API alike."""

import pytest

from controller.live.credentials import Credential, credential_in
from controller.store.access.key_reads import session_credential

PLAIN, SECURE = "gpuward_session=gps_a", "__Host-gpuward_session=gps_b"
KEY = Credential("gpw_k")
A, B = (Credential(session_credential(token), by_cookie=True) for token in ("gps_a", "gps_b"))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Credential()),
        ({"authorization": ["Bearer gpw_k"]}, KEY),
        ({"authorization": ["bearer   gpw_k "], "cookie": [PLAIN]}, KEY),
        ({"authorization": ["Basic dTpw", "Bearer gpw_k"]}, KEY),
        ({"authorization": ["Bearer other"], "cookie": [PLAIN]}, Credential()),
        ({"authorization": ["Bearer"], "cookie": [PLAIN]}, Credential()),
        ({"authorization": ["Basic dTpw"], "cookie": [PLAIN]}, A),
        ({"authorization": [""], "cookie": [PLAIN]}, A),
        ({"authorization": [""], "x-api-key": ["", "gpw_k"]}, KEY),
        ({"api-key": ["gpw_k"], "cookie": [PLAIN]}, KEY),
        ({"x-api-key": ["wrong"], "api-key": ["gpw_k"]}, Credential()),
        ({"x-api-key": [""], "cookie": [PLAIN]}, A),
        ({"cookie": ["a=b", PLAIN]}, A),
        ({"cookie": [f"{PLAIN}; {SECURE}"]}, B),
        ({"cookie": [PLAIN, SECURE]}, B),
        ({"cookie": ["gpuward_session="]}, Credential()),
        ({"cookie": ["gpuward_session=gpw_k"]}, Credential("", by_cookie=True)),
    ],
)
def test_the_credential(fields: dict[str, list[str]], expected: Credential) -> None:
    assert credential_in(lambda name: fields.get(name, [])) == expected
