"""Tests here are plain and asynchronous side by side."""

import asyncio

# As for the command line's tests: the looptime plugin asks for the main thread's loop before every plain test, and
# asyncio would make one that nobody closes unless it is told that there is none.
asyncio.set_event_loop(None)
