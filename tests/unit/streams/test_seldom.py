"""What a library repeats is said once a minute."""

from __future__ import annotations

import logging

from streams.seldom import KNOWN_MAX, Seldom


def record(words: str, *values: object) -> logging.LogRecord:
    return logging.LogRecord("aiokafka", logging.ERROR, __file__, 1, words, values, None)


def test_the_same_words_are_let_through_once_a_minute_and_others_beside_them() -> None:
    now = [0.0]
    seldom = Seldom(lambda: now[0])

    let_through = []
    for now[0] in (0.0, 0.1, 59.9, 60.1, 61.0):
        let_through.append((seldom.filter(record("node %s is gone", 1)), seldom.filter(record("node %s is gone", round(now[0])))))

    assert let_through == [(True, True), (False, False), (False, True), (True, False), (False, True)]


def test_words_that_always_differ_do_not_fill_the_memory() -> None:
    seldom = Seldom(lambda: 0.0)

    let_through = [seldom.filter(record("%s", number)) for number in range(3 * KNOWN_MAX)]

    assert all(let_through)
    assert len(seldom._said) <= KNOWN_MAX
