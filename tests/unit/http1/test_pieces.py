"""A body in pieces takes about the memory that is counted for it."""

import pytest

from http1.bodies import keep


@pytest.mark.parametrize("sizes", [(2,) * 50_000, (1023, 1) * 1000, (1, 4096) * 100, (70_000,), ()])
def test_the_bytes_stay_and_few_pieces_hold_them(sizes: tuple[int, ...]) -> None:
    pieces: list[bytes] = []
    whole = b""
    for number, size in enumerate(sizes):
        data = bytes((number % 251,)) * size
        whole += data
        keep(pieces, data)
    assert b"".join(pieces) == whole
    assert len(pieces) <= 1 + len(whole) // 512


def test_what_is_large_is_not_copied() -> None:
    large = b"x" * 4096
    pieces: list[bytes] = [b"y"]
    keep(pieces, large)
    assert pieces[1] is large
