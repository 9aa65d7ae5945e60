"""A whole terminal: one picture after another in its place, keys, and how it was before at every end."""
