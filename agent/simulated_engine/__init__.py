"""A small model server with canned answers, for trials without a model: `python -m agent.simulated_engine`.

A host may start hundreds at once, so it imports only what is light. Agents and containers of other versions start it,
too: its name stays, and arguments that it does not know are ignored.
"""
