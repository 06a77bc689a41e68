"""The command line: the composition root, one module a verb; a verb with parts is a folder, and `verb` in it where it begins.

What people write comes in through `given`, what the log says through `reading`, what a verb prints goes out through `printed`, and how it
ends through `exits`.
"""
