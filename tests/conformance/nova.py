"""Runs vectors of Nova's and Placement's behaviour through the product's own code: `python tests/conformance/nova.py FILE.json …`.

A vector says `area`, `subject`, `given` and `expect`. One function an area translates what is given into the product's terms, asks the
product, and translates the answer back; it decides nothing. Every key of `expect` must come out equal (numbers within 1e-9). An area or
a subject that nobody knows, an exception, and what is no vector are failures, each with its reason, and do not end the run. Keys of
`given` that nobody reads are named on stderr: what is told there is told in vain. A file that has no list of vectors is named and fails as
one. The last line is `N passed, M failed`; the exit code is 1 if any failed, and 2 if it was a file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from io import TextIOWrapper
from math import isclose
from pathlib import Path
from typing import Any

# As a script, the project's root is not on the path: the product's packages and the adapters beside this file are found from there.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.conformance.known import unknown
from tests.conformance.ledger_areas import AREAS as LEDGER_AREAS
from tests.conformance.ledger_areas import SUBJECTS as LEDGER_SUBJECTS
from tests.conformance.scheduling_areas import AREAS as SCHEDULING_AREAS
from tests.conformance.scheduling_areas import SUBJECTS as SCHEDULING_SUBJECTS

AREAS: dict[str, Callable[[dict[str, Any]], object]] = SCHEDULING_AREAS | LEDGER_AREAS
"""By area: the whole vector in, what the product answers out, under the keys that `expect` uses (more keys do no harm)."""
SUBJECTS: dict[str, Collection[str]] = SCHEDULING_SUBJECTS | LEDGER_SUBJECTS
"""By area: the subjects that its function knows."""

UNASKED = frozenset({"network_metadata"})
"""What Nova asks about and the product does not: a vector that says it fails, rather than passing without it by chance."""

MENTIONS = frozenset({"reason_mentions_in_order"})
PARTLY = frozenset({"stats"})
SETS = frozenset({"products", "vendors", "addresses"})

PRECISION = 1e-9


def load(path: Path) -> list[Any]:
    """The vectors of a file: a list, or an object with `vectors`. Raises ValueError for anything else, and OSError.

    What Python writes beyond JSON (`Infinity`, `NaN`, half of a character in an escape) is read as it was written.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON: {error}") from None
    vectors = document.get("vectors") if isinstance(document, dict) else document
    if not isinstance(vectors, list):
        raise ValueError(f"{path}: expected a list of vectors, or an object with a list `vectors`")
    return vectors


def difference(vector: Any) -> str:
    """What differs from what the vector expects; empty if nothing does."""
    if not isinstance(vector, dict):
        return f"expected an object with area, subject, given and expect, got {vector!r}"
    name, subject, expected = vector.get("area"), vector.get("subject"), vector.get("expect")
    if not isinstance(name, str) or name not in AREAS:
        return f"area {name!r} is not known; known: {', '.join(sorted(AREAS))}"
    if not isinstance(subject, str) or subject not in SUBJECTS[name]:
        return f"subject {subject!r} is not known; known: {', '.join(sorted(SUBJECTS[name]))}"
    if not isinstance(expected, dict) or not expected:
        return f"expected something under `expect`, got {expected!r}"
    if unasked := sorted(UNASKED & set(keys(vector.get("given")))):
        return f"{', '.join(unasked)}: the product has no counterpart"
    try:
        answer = AREAS[name](vector)
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    if not isinstance(answer, Mapping):
        return f"the area answered {answer!r}; expected a mapping"
    wrong = [key for key, value in expected.items() if key not in answer or not agree(key, answer[key], value)]
    return "; ".join(f"{key}: expected {expected[key]!r}, got {answer.get(key, 'nothing')!r}" for key in wrong)


def unread(vector: Any) -> list[str]:
    """The keys of `given` that the adapter does not read, by their paths; none of what is not known at all."""
    name, subject = (vector.get("area"), vector.get("subject")) if isinstance(vector, dict) else (None, None)
    if not isinstance(name, str) or name not in AREAS or not isinstance(subject, str) or subject not in SUBJECTS[name]:
        return []
    return sorted(unknown(name, subject, vector.get("given")))


def keys(given: Any) -> Iterator[str]:
    """Every key at any depth that something stands under: no empty list, no false, and no object of such."""
    if isinstance(given, Mapping):
        for key, value in given.items():
            if any(value.values()) if isinstance(value, Mapping) else value:
                yield key
            yield from keys(value)
    elif isinstance(given, list):
        for each in given:
            yield from keys(each)


def agree(key: str, answered: Any, expected: Any) -> bool:
    """Whether an answer is as expected: reasons are, if each is one that mentions what is expected in its place.

    Of a tracker's statistics those that are expected count: Nova keeps more of them, and its tests look at some.
    """
    if key in PARTLY and expected and isinstance(expected, Mapping) and isinstance(answered, Mapping):
        return all(name in answered and equal(answered[name], value) for name, value in expected.items())
    if key in MENTIONS and isinstance(expected, (list, tuple)) and isinstance(answered, (list, tuple)):
        return len(answered) == len(expected) and all(
            str(words).rstrip(".").lower() in reason.lower() for reason, words in zip(answered, expected, strict=True)
        )
    return equal(ordered(key, answered), ordered(key, expected))


def ordered(key: str, value: Any) -> Any:
    """Devices of a guest are a set: Nova's tests compare them as one."""
    return sorted(value) if key in SETS and isinstance(value, (list, tuple)) else value


def equal(left: Any, right: Any) -> bool:
    """Equal values; numbers within the precision, booleans only as booleans, tuples as lists."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return isclose(left, right, rel_tol=PRECISION, abs_tol=PRECISION)
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in right)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right)


def main(paths: Sequence[str]) -> int:
    """Run the files; print one line for each vector that differs, then the counts."""
    if not paths:
        sys.stderr.write("usage: python tests/conformance/nova.py FILE.json …\n")
        return 2
    vectors, no_lists = list[Any](), 0
    for path in paths:
        try:
            vectors += load(Path(path))
        except (OSError, ValueError) as error:
            sys.stderr.write(f"error: {error}\n")
            no_lists += 1
    passed, failed = 0, no_lists
    for number, vector in enumerate(vectors):
        problem = difference(vector)
        passed, failed = passed + (not problem), failed + bool(problem)
        named = vector if isinstance(vector, dict) else {}
        title = f"{named.get('id', f'number {number}')} {named.get('subject')}"
        if problem:
            print(f"{title}: {problem}")
        if told_in_vain := unread(vector):
            sys.stderr.write(f"{title}: not read: given {', '.join(told_in_vain)}\n")
    print(f"{passed} passed, {failed} failed")
    return 2 if no_lists else 1 if failed else 0


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # What a vector says may be no text, or none that the terminal has letters for.
            stream.reconfigure(errors="backslashreplace")
    sys.exit(main(sys.argv[1:]))
