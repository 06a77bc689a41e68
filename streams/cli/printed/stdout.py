"""The standard streams: an output that names itself in what it raises, and a stderr that may go unheard.

The machine's own error for a file without a name (`claimlog nodes > /dev/full`) names nothing.

Who reads stdout may have read enough (`claimlog snapshot write | head -1`). That ends no work and takes no answer its exit code: the rest
is passed over. What would print for ever asks `check_heard`.
"""

from __future__ import annotations

import os
import select
import sys
from contextlib import AbstractContextManager, redirect_stdout
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any, TextIO

NAME = "stdout"


def own_code() -> AbstractContextManager[object]:
    """Where code that an operator's policy names is run: what it prints goes to stderr, since stdout is the answer's."""
    return redirect_stdout(sys.stderr)


class NamedOut(FileIO):
    """The file of a stream, under this name in what it raises. It keeps the stream, which would close the file as it goes."""

    def __init__(self, stream: TextIOWrapper) -> None:
        super().__init__(stream.fileno(), "w", closefd=False)
        self._stream = stream
        self.is_heard = True

    def write(self, data: Any, /) -> int:
        """As the file's own, but once nobody reads it takes everything and is not heard. Raises OSError with the name as its file."""
        try:
            return super().write(data)
        except BrokenPipeError:
            self.is_heard = False
            return len(data)
        except OSError as problem:
            raise OSError(problem.errno, problem.strerror, NAME) from None


class UnheardErr(NamedOut):
    """The file of stderr, which takes what nobody reads any more, or what its disk has no room for.

    What people are told decides nothing: an answer keeps its exit code, and `claimlog run` waits for room, also on the disk of its stderr.
    """

    def write(self, data: Any, /) -> int:
        """As the file's own, but never raises OSError: there is nobody left to tell it to."""
        try:
            return super().write(data)
        except OSError:
            return len(data)


def is_terminal(stream: TextIO) -> bool:
    """Whether colours and lines that are written again are understood there: `TERM=dumb` (an editor's shell) shows their codes."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def check_heard(stream: TextIO) -> None:
    """Raises BrokenPipeError once nobody reads any more what is printed on a stream that was `named`, be there more to print or not."""
    under = getattr(stream, "buffer", None)
    raw = getattr(under, "raw", under)
    if not isinstance(raw, NamedOut):
        return
    asked = select.poll()
    asked.register(raw, 0)  # errors are told without being asked for
    if not raw.is_heard or asked.poll(0):
        raise BrokenPipeError


def named(stream: TextIOWrapper) -> TextIOWrapper:
    """The same file as `stream`, as UTF-8 and buffered alike. JSON is nothing but UTF-8, and a table has signs that Latin-1 cannot say."""
    return _same(stream, NamedOut(stream))


def unheard(stream: TextIOWrapper) -> TextIOWrapper:
    """The same for stderr, on which nothing fails."""
    return _same(stream, UnheardErr(stream))


def _same(stream: TextIOWrapper, raw: FileIO) -> TextIOWrapper:
    stream.flush()
    if stream.write_through:  # `python -u`, PYTHONUNBUFFERED
        return TextIOWrapper(raw, encoding="utf-8", errors=stream.errors, write_through=True)
    return TextIOWrapper(BufferedWriter(raw), encoding="utf-8", errors=stream.errors, line_buffering=stream.line_buffering)


def hush_stdout() -> None:
    """Nobody gets the rest (`claimlog events | head`, a full disk): keep the interpreter from complaining when it flushes at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
