"""The `gpuward` command: daemons, and client verbs that talk to the HTTP API only."""
