"""Placement: requests in, claims and results out. Pure; its shell is `streams.scheduler`."""
