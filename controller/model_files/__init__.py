"""Readers of model metadata; bounded, run in the killable child."""
