"""A small model server for simulated GPUs, with canned answers. `python -m agent.simulated_engine` starts it.

It is a process like any engine: it loads, answers its probe, serves, obeys or ignores SIGTERM, and can exit by itself.
Its arguments, and a part of each prompt, say how it behaves: slowly, silently, refusing, or by dying in mid-answer.
It starts many times in tests and benches, so it imports only what is light.
"""
