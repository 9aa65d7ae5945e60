"""The command line of Gpuward: daemons, and client verbs that talk to the HTTP API only."""
