"""`claimlog leaks`, and what an operator does about findings."""
