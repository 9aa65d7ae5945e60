"""The ledger of claims: the reads of placement, and the transaction that commits it."""
