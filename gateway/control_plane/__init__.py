"""The way to the controllers."""
