"""What is said of topics that are not as a ledger needs them."""

from __future__ import annotations

from streams.log.kafka_topics import MISSING, TopicDifference, commands, told


def test_what_topics_have_in_common_is_said_once() -> None:
    thin = [TopicDifference(f"topic-{number}", "replication", "3 or more", "1") for number in range(13)]
    kept = TopicDifference("claims", "retention.ms", "-1", "3600000")

    said = told([thin[0], kept, *thin[1:]])

    assert said == (
        "topics 'topic-0', 'topic-1', 'topic-2' and 10 more: replication is 1, not 3 or more; "
        "topic 'claims': retention.ms is 3600000, not -1"
    )


def test_what_kafka_s_own_tools_set_right_is_told_as_their_commands() -> None:
    found = [
        TopicDifference("claims", "retention.ms", "-1", "3600000"),
        TopicDifference("claims", "min.insync.replicas", "2 or more", "1"),
        TopicDifference("claims", "partitions", "4", "6"),
        TopicDifference("claims", "replication", "3 or more", "1"),
        TopicDifference("claims", "message.timestamp.type", "LogAppendTime", "CreateTime", is_of_mirrors=True),
        TopicDifference("leak-findings", MISSING, "`claimlog topics apply` makes it", MISSING),
        TopicDifference("leak-findings", "replication", "3 or more", "1"),
    ]

    assert commands(found, "fleet.{}".format) == [
        "kafka-configs.sh --alter --entity-type topics --entity-name fleet.claims --add-config retention.ms=-1,min.insync.replicas=2",
        "kafka-reassign-partitions.sh --execute gives partitions 3 or more replicas, for fleet.claims, fleet.leak-findings",
    ]
