"""Verbs that work on this host, without the API: daemons, backups, certificates, `doctor`."""
