"""What is open at once: bounded for one key and in all, and free again at its end."""

import pytest

from controller.api.errors import ApiError
from controller.api.open_streams import OpenStreams


def refusal(share: OpenStreams, key: str) -> ApiError:
    with pytest.raises(ApiError) as refused, share.admitted(key):
        pass
    return refused.value


def test_one_key_has_its_share_and_all_have_a_total() -> None:
    share = OpenStreams("logs", "too_many_logs", of_key=2, total=3)
    with share.admitted("a"), share.admitted("a"):
        error = refusal(share, "a")
        assert (error.status, error.code) == (429, "too_many_logs")
        assert error.message == "2 logs of this key are open, the most allowed; close some, or use another key"
        with share.admitted("b"):
            assert len(share) == 3
            error = refusal(share, "b")
            assert (error.status, error.code) == (503, "too_many_logs")
            assert refusal(share, "a").status == 429
        with share.admitted("b"):
            pass
    assert len(share) == 0


def test_what_fails_is_open_no_more_and_keys_are_forgotten() -> None:
    share = OpenStreams("logs", "too_many_logs", of_key=1, total=1)
    for n in range(100):
        with pytest.raises(ZeroDivisionError), share.admitted(str(n)):
            raise ZeroDivisionError
    assert len(share) == 0
    assert not share._open
