"""Backups of the ledger: one file, taken in one snapshot and restored in one transaction."""
