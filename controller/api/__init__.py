"""The HTTP API: `resources/` has one file per resource. Handlers validate, read or write intent, and return."""
