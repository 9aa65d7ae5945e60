"""HTTP/1.1 for both daemons: bounds on connections. Imports none of our packages."""
