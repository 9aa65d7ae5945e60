"""Readers of model metadata. They are bounded, and run in the killable child."""
