"""One piece of work in flight: in order, one at a time, and none outlives its owner."""

import asyncio

import pytest

from controller.runtime.tasks import OneInFlight


async def test_one_runs_at_a_time_while_the_owner_goes_on() -> None:
    seen: list[str] = []

    async def piece(name: str) -> str:
        seen.append(f"{name} begins")
        await asyncio.sleep(0)
        seen.append(f"{name} ends")
        return name

    async with OneInFlight[str]() as in_flight:
        await in_flight.start(piece("a"))
        seen.append("owner")
        await in_flight.start(piece("b"))
    assert seen == ["owner", "a begins", "a ends", "b begins", "b ends"]
    assert in_flight.results == ["a", "b"]


async def test_a_pieces_error_is_raised_at_the_next_one_which_is_not_started() -> None:
    begun: list[str] = []

    async def piece(name: str) -> None:
        begun.append(name)
        raise ValueError(name)

    async def own() -> None:
        async with OneInFlight[None]() as in_flight:
            await in_flight.start(piece("a"))
            await in_flight.start(piece("b"))

    with pytest.raises(ValueError, match="a"):
        await own()
    assert begun == ["a"]


async def test_what_the_last_piece_raises_comes_at_the_end() -> None:
    async def piece() -> None:
        raise ValueError("last")

    async def own() -> None:
        async with OneInFlight[None]() as in_flight:
            await in_flight.start(piece())

    with pytest.raises(ValueError, match="last"):
        await own()


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
async def test_a_piece_does_not_outlive_its_owner(how: str) -> None:
    ended = asyncio.Event()

    async def piece() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def own() -> None:
        async with OneInFlight[None]() as in_flight:
            await in_flight.start(piece())
            await asyncio.sleep(0)
            if how == "fails":
                raise KeyError
            await in_flight.start(piece())

    owner = asyncio.create_task(own())
    await asyncio.sleep(0.01)
    owner.cancel()
    await asyncio.wait([owner], timeout=5)
    assert ended.is_set()
    assert owner.cancelled() or isinstance(owner.exception(), KeyError)
