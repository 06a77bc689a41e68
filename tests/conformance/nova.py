"""Runs vectors of Nova's and Placement's behaviour through the product's own code: `python tests/conformance/nova.py FILE.json …`.

A vector says `area`, `subject`, `given` and `expect`. One function an area translates what is given into the product's terms, asks the
product, and translates the answer back; it decides nothing. Every key of `expect` must come out equal (numbers within 1e-9); an area or a
subject that nobody knows, and an exception, are failures. The last line is `N passed, M failed`; the exit code is 1 if any failed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from math import isclose
from pathlib import Path
from typing import Any

import msgspec

# As a script, the project's root is not on the path: the product's packages and the adapters beside this file are found from there.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.conformance.ledger_areas import AREAS as LEDGER_AREAS
from tests.conformance.scheduling_areas import AREAS as SCHEDULING_AREAS

Vector = Mapping[str, Any]
AREAS: dict[str, Callable[[dict[str, Any]], object]] = SCHEDULING_AREAS | LEDGER_AREAS
"""By area: the whole vector in, what the product answers out, under the keys that `expect` uses (more keys do no harm)."""

PRECISION = 1e-9


def load(path: Path) -> list[dict[str, Any]]:
    """The vectors of a file: a list, or an object with `vectors`."""
    document = msgspec.json.decode(path.read_bytes())
    vectors: list[dict[str, Any]] = document["vectors"] if isinstance(document, dict) else document
    return vectors


def difference(vector: dict[str, Any]) -> str:
    """What differs from what the vector expects; empty if nothing does."""
    area = AREAS.get(vector.get("area", ""))
    if area is None:
        return f"area {vector.get('area')!r} is not known; known: {', '.join(sorted(AREAS))}"
    try:
        answer = area(vector)
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    if not isinstance(answer, Mapping):
        return f"the area answered {answer!r}; expected a mapping"
    wrong = [key for key, value in vector["expect"].items() if key not in answer or not equal(answer[key], value)]
    return "; ".join(f"{key}: expected {vector['expect'][key]!r}, got {answer.get(key, 'nothing')!r}" for key in wrong)


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
    passed, failed = 0, 0
    for path in paths:
        for vector in load(Path(path)):
            problem = difference(vector)
            passed, failed = passed + (not problem), failed + bool(problem)
            if problem:
                print(f"{vector.get('id')} {vector.get('subject')}: {problem}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
