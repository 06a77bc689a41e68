"""`claimlog doctor`, and its checks."""
