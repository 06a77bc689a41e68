"""`claimlog demo`, and what it is played on."""
