"""Samples, their minutes, and reports over them."""
