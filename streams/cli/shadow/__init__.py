"""`claimlog shadow`, and the replay behind it."""
