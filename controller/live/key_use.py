"""Gateways' records of keys: shares of their limits, and their usage."""

from controller.store.access.key_shares import exchange_shares, leave_shares
from controller.store.access.usage import Counts, UsageRow, write_usage

__all__ = ["Counts", "UsageRow", "exchange_shares", "leave_shares", "write_usage"]
