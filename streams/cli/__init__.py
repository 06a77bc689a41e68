"""The command line: the composition root, one module a verb. What a verb prints goes through `output`, how it ends through `exits`."""
