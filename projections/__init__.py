"""What the log means: pure folds over records. Only `rocks` touches a disk."""
