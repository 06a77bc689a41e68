"""`claimlog produce`, a module a source, and what they share."""
