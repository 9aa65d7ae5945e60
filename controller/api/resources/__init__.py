"""One file per resource of the API: its routes, their checks, their answers."""
