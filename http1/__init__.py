"""HTTP/1.1 for all daemons of Gpuward: connections, their bounds, a pool of kept ones. Imports none of our packages."""
