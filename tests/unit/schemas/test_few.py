"""Lists in sentences."""

from __future__ import annotations

from schemas.few import few


def test_the_first_few_are_named_and_the_others_counted() -> None:
    assert few([]) == ""
    assert few(["a", "b", "c"]) == "a, b, c"
    assert few(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert few([1, 2, 3], most=1, separator="; ") == "1 and 2 more"
