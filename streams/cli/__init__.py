"""The command line: the composition root, one module a verb; a verb with parts is a folder, and `verb` in it where it begins.

What verbs share stands in layers: how answers look (`printed`), what people write (`given`), what the log says (`reading`). How a command
ends is said by `exits`, and what is wrong with one by `problems`.
"""
