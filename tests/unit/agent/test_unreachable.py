"""What an error of a connection means for the person that starts the agent."""

import ssl

import pytest

from agent.decide.unreachable import needs_tls, unreachable

URL = "https://c:1"


def not_accepted(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "x")
    error.verify_code, error.verify_message = code, "the reason"
    return error


def tls(reason: str | None) -> ssl.SSLError:
    error = ssl.SSLError(1, "some text")
    error.reason = reason  # type: ignore[assignment] # as OpenSSL gives it where it knows none
    return error


@pytest.mark.parametrize(
    ("error", "why", "remedy"),
    [
        (not_accepted(9), "is not valid now: the reason", "correct the clock"),
        (not_accepted(10), "is not valid now: the reason", "correct the clock"),
        (not_accepted(62), "is for other names: the reason", "gpuward ca init --name NAME"),
        (not_accepted(64), "is for other names: the reason", "gpuward ca init --name NAME"),
        (not_accepted(19), "does not trust the authority of https://c:1's certificate: the reason", "--ca"),
        (tls("WRONG_VERSION_NUMBER"), "https://c:1 speaks no TLS", "write http://c:1 in --controller"),
        (tls("NO_CIPHERS"), "TLS with https://c:1 fails: NO_CIPHERS", "Check the address"),
        (tls(None), "TLS with https://c:1 fails: some text", "Check the address"),
        (TimeoutError("x"), "https://c:1 cannot be reached: no answer in time", "Check the address"),
        (OSError("refused"), "https://c:1 cannot be reached: refused", "Check the address"),
        (OSError(), "https://c:1 cannot be reached: OSError()", "Check the address"),
    ],
)
def test_an_error_is_explained_with_a_remedy(error: Exception, why: str, remedy: str) -> None:
    found = unreachable(URL, error)
    assert why in found.why
    assert remedy in found.remedy
    assert str(found) == (found.why if remedy == "Check the address" else f"{found.why}. {found.remedy}")


def test_only_the_scheme_is_corrected() -> None:
    assert "write http://https:1 in" in unreachable("https://https:1", tls("HTTP_REQUEST")).remedy
    assert "Write https://http:1 in" in needs_tls("http://http:1").remedy
