"""The scheduler: inventory, search, admission, explanation and estimate. Pure."""
