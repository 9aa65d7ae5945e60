"""A deployment's instances: `decide` lists the sub-steps in order, each in its own file."""
