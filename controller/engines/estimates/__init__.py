"""Memory needs of models, from the facts in their files."""
