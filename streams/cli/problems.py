"""What the command line is told when it cannot be answered: asked wrongly, or records that are needed are not at hand."""

from __future__ import annotations


class UsageProblem(Exception):
    """The command line asks for something that does not exist or does not fit together."""


class AnswerIncomplete(Exception):
    """Records that the answer needs are not at hand; the message names them and where they may be."""
