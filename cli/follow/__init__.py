"""`-w`: a list that goes on. It reads the API's watch, keeps the objects, and shows or prints what changes."""
