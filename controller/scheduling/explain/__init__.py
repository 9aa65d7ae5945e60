"""Why an ask is pending, and what would help."""
