"""`claimlog fleet`, and its file."""
