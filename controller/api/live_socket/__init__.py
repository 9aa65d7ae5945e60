"""`GET /live`: one WebSocket for each browser tab, with several topics on it."""
