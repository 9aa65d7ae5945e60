"""HTTP API: one handler file per resource; validate, write intent, return."""
