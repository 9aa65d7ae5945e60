"""One run at a time, shared by all that ask meanwhile."""

import asyncio

import pytest

from controller.api.single_flight import SingleFlight


class Runs:
    """Counts runs; each waits until it is let go."""

    def __init__(self) -> None:
        self.begun = 0
        self.at_once = 0
        self.go = asyncio.Semaphore(0)
        self.fails = False

    async def make(self) -> int:
        self.begun += 1
        number = self.begun
        self.at_once += 1
        assert self.at_once == 1
        await self.go.acquire()
        self.at_once -= 1
        if self.fails:
            raise ZeroDivisionError
        return number


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_those_that_ask_meanwhile_share_the_next_run() -> None:
    runs = Runs()
    flight = SingleFlight(runs.make)
    first = [asyncio.create_task(flight.get())]
    await settle()
    later = [asyncio.create_task(flight.get()) for _ in range(30)]
    await settle()
    assert runs.begun == 1
    runs.go.release()
    assert await asyncio.gather(*first) == [1]
    runs.go.release()
    assert await asyncio.gather(*later) == [2] * 30, "a run that began after they asked"
    runs.go.release()
    assert await flight.get() == 3
    await flight.close()


async def test_a_run_goes_on_without_those_that_asked() -> None:
    runs = Runs()
    flight = SingleFlight(runs.make)
    for _ in range(30):
        asked = asyncio.create_task(flight.get())
        await settle()
        asked.cancel()
        await settle()
    assert runs.begun == 1, "asking and leaving starts no second one"
    runs.go.release()
    await settle()
    assert runs.begun == 2
    await flight.close()


async def test_a_failure_is_told_to_all_and_the_next_run_is_a_new_one() -> None:
    runs = Runs()
    flight = SingleFlight(runs.make)
    runs.fails = True
    asked = [asyncio.create_task(flight.get()) for _ in range(3)]
    runs.go.release()
    for one in asked:
        with pytest.raises(ZeroDivisionError):
            await one
    runs.fails = False
    runs.go.release()
    assert await flight.get() == 2


async def test_close_ends_what_runs() -> None:
    runs = Runs()
    flight = SingleFlight(runs.make)
    asked = [asyncio.create_task(flight.get())]
    await settle()
    asked.append(asyncio.create_task(flight.get()))
    await settle()
    await flight.close()
    for one in asked:
        with pytest.raises(asyncio.CancelledError):
            await one
