import asyncio

# Asked for the current loop where none was ever set, asyncio makes one. pytest-asyncio asks before its first test, and
# nobody closes what it gets; told that there is none, asyncio makes none.
asyncio.set_event_loop(None)
