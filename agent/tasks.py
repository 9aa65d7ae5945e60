"""Blocking calls in threads, and a wait for the first of several coroutines."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


async def in_background(call: Callable[[], _Result]) -> _Result:
    """Runs a call that may hang, such as on a dead network disk, in a daemon thread.

    Cancelling the caller abandons the call.
    """
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


async def in_thread(call: Callable[[], _Result], undo: Callable[[_Result], object], name: str) -> _Result:
    """Runs a call in a thread. If the caller is cancelled, the call continues and `undo` gets its result."""
    running = asyncio.create_task(asyncio.to_thread(call), name=name)

    def take_back(ended: asyncio.Task[_Result]) -> None:
        if not ended.cancelled() and ended.exception() is None:
            undo(ended.result())

    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        running.add_done_callback(take_back)
        raise


async def wait_first(*coroutines: Coroutine[Any, Any, Any], limit_s: float | None = None) -> None:
    """Returns when the first has ended or `limit_s` has passed. The rest are cancelled and awaited.

    Raises an exception of a coroutine that ended first. `limit_s` may be None if one of the coroutines has a limit of
    its own, or if the wait lasts as long as a process.
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
