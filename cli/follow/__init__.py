"""`-w`: follows a list by the API's watch, and shows or prints its changes."""
