"""The client verbs, by what they are about. Each reads or writes through the HTTP API only."""
