"""The standard streams: an output that names itself in what it raises, and a stderr that may go unheard.

The machine's own error for a file without a name (`claimlog nodes > /dev/full`) names nothing.
"""

from __future__ import annotations

from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any

NAME = "stdout"


class NamedOut(FileIO):
    """The file of a stream, under this name in what it raises. It keeps the stream, which would close the file as it goes."""

    def __init__(self, stream: TextIOWrapper) -> None:
        super().__init__(stream.fileno(), "w", closefd=False)
        self._stream = stream

    def write(self, data: Any, /) -> int:
        """As the file's own. Raises OSError with the name as its file."""
        try:
            return super().write(data)
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
