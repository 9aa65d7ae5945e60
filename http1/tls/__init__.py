"""TLS for all daemons: which certificate a server shows, how connections arrive, what a client accepts, who issues."""
