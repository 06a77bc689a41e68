"""Partitions added to a ledger's topics on a broker: who works ends with the reason, who reads is answered as before, a copy mends it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined] # public, though not in its __all__

from schemas.topics import ANSWERED, AUDITS, MADE_AGAIN, REQUESTS, SNAPSHOTS, STREAM_PARTITIONS, TOPICS
from streams.cli.main import run
from streams.log.kafka import KafkaLog
from streams.log.kafka_settings import KafkaSettings
from tests.faults.harness import CLAIMLOG, SOAKS, until, until_known
from tests.faults.harness import site as processes
from tests.kafka_broker import bootstrap

PATIENCE_SECONDS = 60.0


OF_EACH_KIND = {ANSWERED, SNAPSHOTS, STREAM_PARTITIONS}
"""One that schedulers read, one that tables begin with, and the stream processor's own; `make soak` takes all."""
OF_LEDGER = [topic.name for topic in TOPICS.values() if topic.partitions == "ledger"]


@pytest.mark.parametrize(
    ("ledger", "requests"), [([AUDITS], [REQUESTS]), (OF_LEDGER, [])], ids=["one of each kind", "all of the ledger alike"]
)
def test_partitions_added_to_topics_end_who_works_and_are_left_out_by_who_reads_and_by_a_copy(
    ledger: list[str], requests: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = KafkaSettings(bootstrap=bootstrap(), prefix=f"added-{uuid4().hex[:10]}", single_broker=True)
    spec = f"{settings.place}?single-broker=true"

    def said(*arguments: str, log: str = spec, code: int = 0) -> str:
        capsys.readouterr()
        assert run([*arguments, "--log", log]) == code, capsys.readouterr().err
        return capsys.readouterr().out

    def answers(log: str = spec) -> list[object]:
        at, until_then = ("--at", moment), ("--until", moment)
        verbs = (["nodes", *at], ["claims", "list", *at], ["leaks", *at], ["explain", "r1", *at], ["timeline", "request/r1", *until_then])
        return [json.loads(said(*verb, "-o", "json", log=log))["items"] for verb in verbs]

    with processes(tmp_path) as site:
        said("topics", "apply", "--ledger-partitions", "2", "--request-partitions", "2")
        begin = [*CLAIMLOG, "run", "--log", spec]
        working = [
            site.start("worker", [*begin, "--only", "processor", "--state", str(tmp_path / "state"), "--audit-interval", "3600"]),
            site.start("scheduler", [*begin, "--only", "scheduler", "--lease-timeout", "6"]),
        ]
        said("produce", "load", "--nodes", "6", "--once")
        with KafkaLog.open(settings) as log:
            until_known(log, 6)
        said("place", "--memory", "512", "--vcpus", "1", "--request", "r1", "--wait", "60s")
        moment = json.loads(said("events", "-o", "json"))["cut"]
        before = answers()

        admin = AdminClient({"bootstrap.servers": settings.bootstrap})
        asked = [NewPartitions(settings.topic(name), 3) for name in (*ledger, *requests)]
        for made in admin.create_partitions(asked).values():
            made.result()

        until(lambda: all(each.running is not None and each.running.poll() is not None for each in working), PATIENCE_SECONDS, "both end")
        for process in working:
            assert process.ended() == 1, process.said()
            # Under the process, or before it opened what it was handed then: whichever is noticed first.
            assert re.search("somebody changed that|somebody added some", process.said()), process.said()
        assert answers() == before
        works = (["run", "--only", "scheduler"], ["place", "--memory", "512"], ["produce", "load", "--nodes", "6", "--once"])
        for work in works:
            with pytest.raises(AssertionError, match=r"[Ww]here somebody added some|: somebody added some"):
                said(*work)
        found = {each["topic"]: each["found"] for each in json.loads(said("topics", "check", "-o", "json", code=3))["items"]}
        added = dict.fromkeys((*ledger, *requests), "partitions is 3, not 2")
        assert {name: text for name, text in found.items() if text != "as needed"} == added

        copied = f"sqlite:{tmp_path / 'copy.sqlite'}"
        said("copy", copied)
        assert answers(copied) == before


@pytest.mark.parametrize("name", sorted(MADE_AGAIN if SOAKS else MADE_AGAIN & OF_EACH_KIND))
def test_a_topic_that_is_made_again_is_deleted_and_made_anew_and_all_goes_on(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = KafkaSettings(bootstrap=bootstrap(), prefix=f"anew-{uuid4().hex[:10]}", single_broker=True)
    spec = f"{settings.place}?single-broker=true"

    def said(*arguments: str, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        assert run([*arguments, "--log", spec]) == code, capsys.readouterr().err
        return capsys.readouterr()

    with processes(tmp_path) as site:
        said("topics", "apply", "--ledger-partitions", "2", "--request-partitions", "2")
        begin = [*CLAIMLOG, "run", "--log", spec]
        worker = site.start("worker", [*begin, "--only", "processor", "--state", str(tmp_path / "state"), "--audit-interval", "3600"])
        scheduler = site.start("scheduler", [*begin, "--only", "scheduler", "--lease-timeout", "6"])
        said("produce", "load", "--nodes", "6", "--once")
        with KafkaLog.open(settings) as log:
            until_known(log, 6)
        said("place", "--memory", "512", "--vcpus", "1", "--request", "r1", "--wait", "60s")
        (before,) = json.loads(said("claims", "list", "-o", "json")[0])["items"]

        admin = AdminClient({"bootstrap.servers": settings.bootstrap})
        admin.create_partitions([NewPartitions(settings.topic(name), 3)])[settings.topic(name)].result()
        both = (worker, scheduler)
        until(lambda: all(each.running is not None and each.running.poll() is not None for each in both), PATIENCE_SECONDS, "both end")
        assert [each.ended() for each in both] == [1, 1]
        advice = f"delete {settings.topic(name)} (`kafka-topics.sh --delete`)"
        assert all(advice in each.said() for each in both)
        assert advice in said("topics", "check", code=3)[1]
        for refused in (["topics", "apply"], ["run", "--only", "scheduler"], ["place", "--memory", "512"]):
            assert advice in said(*refused, code=1)[1]
        assert advice in said("doctor", code=3)[0]

        admin.delete_topics([settings.topic(name)])[settings.topic(name)].result()
        said("topics", "apply")
        for each in both:
            each.start()
        said("place", "--memory", "512", "--vcpus", "1", "--request", "r2", "--wait", "60s")
        assert before["claim_id"] in {each["claim_id"] for each in json.loads(said("claims", "list", "-o", "json")[0])["items"]}
        until(lambda: run(["doctor", "--log", spec]) == 0, PATIENCE_SECONDS, "all is well")
