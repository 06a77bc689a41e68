"""What people write: moments, amounts, requests and changes, as values or as a usage problem that says where."""
