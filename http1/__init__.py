"""HTTP/1.1 for all daemons: connections, their bounds, a pool of kept ones. Imports none of our packages."""
