"""The connection to the controller: join, handshake, session, and what is queued for it."""
