"""The hub: agents' connections, the dispatch of commands, and the writes of what agents report."""
