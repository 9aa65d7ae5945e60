"""Memory that a model needs, from what its files say."""
