"""Backups of the whole ledger: one file, taken in one snapshot and restored in one transaction."""
