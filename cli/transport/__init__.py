"""The way to a controller: its address and key, its servers, and the client of the API."""
