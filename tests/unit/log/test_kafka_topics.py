"""What is said of topics that are not as a ledger needs them."""

from __future__ import annotations

from streams.log.kafka_topics import Difference, told


def test_what_topics_have_in_common_is_said_once() -> None:
    thin = [Difference(f"topic-{number}", "replication", "3 or more", "1") for number in range(13)]
    kept = Difference("claims", "retention.ms", "-1", "3600000")

    said = told([thin[0], kept, *thin[1:]])

    assert said == (
        "topics 'topic-0', 'topic-1', 'topic-2' and 10 more: replication is 1, not 3 or more; "
        "topic 'claims': retention.ms is 3600000, not -1"
    )
