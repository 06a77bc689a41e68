"""What the log says: opened, read in order, folded up to a moment, and one request's way through it."""
