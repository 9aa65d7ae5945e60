"""Which credential a request carries, for the gateway and the API alike."""

import pytest

from controller.live.key_ring import Credential, credential_in
from controller.store.access.key_reads import session_credential

PLAIN, SECURE = "gpuward_session=gps_a", "__Host-gpuward_session=gps_b"
KEY = Credential(("gpw_k",))
WRONG = Credential(("",))
A, B = (session_credential(token) for token in ("gps_a", "gps_b"))


def sessions(*texts: str) -> Credential:
    return Credential(texts, by_cookie=True)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Credential()),
        ({"authorization": ["Bearer gpw_k"]}, KEY),
        ({"authorization": ["bearer   gpw_k "], "cookie": [PLAIN]}, KEY),
        ({"authorization": ["Basic dTpw", "Bearer gpw_k"]}, KEY),
        ({"authorization": ["Bearer other"], "cookie": [PLAIN]}, WRONG),
        ({"authorization": ["Bearer"], "cookie": [PLAIN]}, WRONG),
        ({"authorization": ["Basic dTpw"], "cookie": [PLAIN]}, sessions(A)),
        ({"authorization": [""], "cookie": [PLAIN]}, sessions(A)),
        ({"authorization": [""], "x-api-key": ["", "gpw_k"]}, KEY),
        ({"api-key": ["gpw_k"], "cookie": [PLAIN]}, KEY),
        ({"x-api-key": ["wrong"], "api-key": ["gpw_k"]}, WRONG),
        ({"x-api-key": [""], "cookie": [PLAIN]}, sessions(A)),
        ({"cookie": ["a=b", PLAIN]}, sessions(A)),
        ({"cookie": [f"{PLAIN}; {SECURE}"]}, sessions(B, A)),
        ({"cookie": [PLAIN, SECURE]}, sessions(B, A)),
        ({"cookie": ["gpuward_session="]}, Credential()),
        ({"cookie": ["gpuward_session=gpw_k"]}, sessions("")),
    ],
)
def test_the_credential(fields: dict[str, list[str]], expected: Credential) -> None:
    assert credential_in(lambda name: fields.get(name, [])) == expected
