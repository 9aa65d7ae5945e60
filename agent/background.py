"""Blocking calls that may hang, such as of a dead network disk: in threads that hold no process back at its end."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


async def in_background(call: Callable[[], _Result]) -> _Result:
    """What the call returns or raises. A caller that is cancelled leaves it behind."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_Result] = loop.create_future()

    def settle(result: _Result | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type] # without an error there is a result

    def work() -> None:
        try:
            result, error = call(), None
        except BaseException as caught:  # noqa: BLE001 - it is raised where the result is awaited
            result, error = None, caught
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name="background", daemon=True).start()
    return await done
