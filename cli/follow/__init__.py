"""`-w`: a list that is followed. It reads the API's watch, keeps the objects, and shows or prints what changes."""
