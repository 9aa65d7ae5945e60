"""The ledger of claims: what placement reads, and the transaction that commits it."""
