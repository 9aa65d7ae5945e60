"""The client verbs. Each reads or writes through the HTTP API only."""
