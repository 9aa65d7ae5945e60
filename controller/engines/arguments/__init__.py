"""Arguments and environment of engines: refusals, grants, and command lines."""
