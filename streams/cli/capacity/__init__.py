"""`claimlog capacity`, and the flavors it counts."""
