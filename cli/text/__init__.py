"""Objects and reports as text. Pure."""
