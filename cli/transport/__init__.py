"""How requests reach a controller: its address and key, one server or several, and the client of the API."""
