"""What the log means: pure folds over records. Only `rocks` and `snapshots` touch a disk."""
