"""Choosing a node: pure functions over the fold of `claims`. A choice is a proposal; whether it is granted, the ledger says."""
