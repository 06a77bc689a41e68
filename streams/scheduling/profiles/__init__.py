"""The profile engine: what `reference` answers, from the live distinct profiles of the nodes instead of the nodes. Begins in `engine`."""
