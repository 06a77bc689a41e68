"""How a decision's evidence says which own claims lay over the fold: by their counters, since in a batch there may be hundreds.

An own claim in flight stands behind the decision's cut in `claims`, with the node it was laid on as its first. So its counter is enough,
and those of a batch follow on each other: `process-epoch.17-40,43@` are the claims 17 to 40 and 43 of that process's start. What earlier
versions wrote spells out each one, `claim id@node`; both are read.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence

RANGES_PER_TEXT = 100
"""A text of evidence has 4096 characters at most; a range takes 40 of them where counters are very high."""

_Range = tuple[int, int]
_NUMBERED = re.compile(r".*\.[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*@", re.DOTALL).fullmatch
"""Anybody may write results: what only looks like counters names a claim that nobody has."""


class InFlight:
    """The own claims that one process (`process-epoch`, as in claim ids) has laid over its fold. Counters come in ascending order."""

    def __init__(self, process: str) -> None:
        self._process = f"{process}."
        self._counters: dict[str, int] = {}
        self._texts: tuple[str, ...] | None = ()

    def lay(self, claim_id: str, counter: int) -> None:
        """A claim was laid over the fold; its counter is above all before it."""
        self._counters[claim_id] = counter
        if self._texts is not None:
            self._texts = _with_counter(self._texts, self._process, counter)

    def lift(self, claim_id: str) -> None:
        """A claim was lifted; one that is not laid is let pass."""
        if self._counters.pop(claim_id, None) is not None:
            self._texts = None

    def texts(self) -> tuple[str, ...]:
        """What evidence says of it."""
        if self._texts is None:
            self._texts = _texts(self._process, _ranges(self._counters.values()))
        return self._texts


def with_one(texts: tuple[str, ...], process: str, claim_id: str) -> tuple[str, ...]:
    """What evidence says where the process lays one claim more, the last of all; `process` has its start with it, as in claim ids."""
    return _with_counter(texts, f"{process}.", _parted(claim_id)[1])


def without(texts: tuple[str, ...], process: str, claim_ids: Collection[str]) -> tuple[str, ...]:
    """What evidence says without these claims of the process."""
    gone = {_parted(claim_id)[1] for claim_id in claim_ids}
    return _texts(f"{process}.", _ranges(counter for text in texts for counter in _counters(text) if counter not in gone))


def is_numbered(text: str) -> bool:
    """Whether it names claims by their counters. A node has a name, so a claim that is spelled out ends otherwise."""
    return text.endswith("@") and _NUMBERED(text) is not None


def count(overlay: Iterable[str]) -> int:
    """How many claims an overlay names."""
    return sum(sum(last - first + 1 for first, last in _ranges_of(text)) if is_numbered(text) else 1 for text in overlay)


class Named:
    """The claims that an overlay names: asked of each claim that stands in the log."""

    def __init__(self, overlay: Sequence[str]) -> None:
        self.size = count(overlay)
        self._ids = {text.rpartition("@")[0] for text in overlay if not is_numbered(text)}
        self._ranges: dict[str, list[_Range]] = {}
        """By how the claims of one process's start end before their counters. Spread out, a few bytes could fill the memory."""
        for text in overlay:
            if is_numbered(text):
                self._ranges.setdefault(f"/{_process_of(text)}", []).extend(_ranges_of(text))
        for ranges in self._ranges.values():
            ranges.sort()

    def __contains__(self, claim_id: str) -> bool:
        """Whether it is one of them."""
        if claim_id in self._ids:
            return True
        if not self._ranges:
            return False
        process, counter = _parted(claim_id)
        for ending, ranges in self._ranges.items():
            if process.endswith(ending):
                at = bisect_right(ranges, counter, key=_first_of)
                return at > 0 and counter <= ranges[at - 1][1]
        return False


def spelled(text: str, claim_ids: Collection[str]) -> Iterator[str]:
    """The ids that a text with counters stands for, in the order the claims were laid. Raises KeyError with what names a missing one."""
    ending = f"/{_process_of(text)}"
    known = {counter: claim_id for claim_id in claim_ids for process, counter in (_parted(claim_id),) if process.endswith(ending)}
    for counter in _counters(text):
        if counter not in known:
            raise KeyError(f"{ending[1:]}{counter}")
        yield known[counter]


def _first_of(counters: _Range) -> int:
    return counters[0]


def _ranges(counters: Iterable[int]) -> list[_Range]:
    ranges: list[_Range] = []
    for counter in counters:
        _grow(ranges, counter)
    return ranges


def _grow(ranges: list[_Range], counter: int) -> None:
    """Add a counter above all others."""
    if ranges and ranges[-1][1] == counter - 1:
        ranges[-1] = ranges[-1][0], counter
    else:
        ranges.append((counter, counter))


def _with_counter(texts: tuple[str, ...], process: str, counter: int) -> tuple[str, ...]:
    """The texts with a counter above all others. Only the end of the last one is looked at: it is asked for each claim of a batch."""
    if not texts:
        return (f"{process}{counter}@",)
    *full, last = texts
    begin = len(process)
    at = max(last.rfind(",", begin) + 1, begin)
    first, _, end = last[at:-1].partition("-")
    if int(end or first) == counter - 1:
        return (*full, f"{last[:at]}{first}-{counter}@")
    if last.count(",", begin) + 1 < RANGES_PER_TEXT:
        return (*full, f"{last[:-1]},{counter}@")
    return (*texts, f"{process}{counter}@")


def _texts(process: str, ranges: Sequence[_Range]) -> tuple[str, ...]:
    parts = [f"{first}-{last}" if first < last else f"{first}" for first, last in ranges]
    return tuple([f"{process}{','.join(parts[at : at + RANGES_PER_TEXT])}@" for at in range(0, len(parts), RANGES_PER_TEXT)])


def _process_of(text: str) -> str:
    """`process-epoch.` of a text with counters."""
    return text[: text.rindex(".") + 1]


def _ranges_of(text: str) -> Iterator[_Range]:
    for part in text[text.rindex(".") + 1 : -1].split(","):
        first, _, last = part.partition("-")
        yield int(first), int(last or first)


def _counters(text: str) -> Iterator[int]:
    for first, last in _ranges_of(text):
        yield from range(first, last + 1)


def _parted(claim_id: str) -> tuple[str, int]:
    """`request/index/process-epoch.` and the counter; −1 where an id has none, since others may write claims too."""
    at = claim_id.rfind(".") + 1
    number = claim_id[at:]
    return claim_id[:at], int(number) if number.isascii() and number.isdigit() else -1
