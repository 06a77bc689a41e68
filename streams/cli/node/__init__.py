"""`claimlog node`, and the verbs under it that need a module."""
