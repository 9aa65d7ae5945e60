"""One request to a model, from its head to the end of its answer."""
