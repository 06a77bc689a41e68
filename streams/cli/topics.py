"""`claimlog topics`: make the topics of a ledger with the settings that keep it safe, and say where those of a cluster differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, runtime_checkable

from cyclopts import App, Parameter
from msgspec import Struct
from msgspec.structs import replace

from projections.whole import opened_partitions
from schemas.topics import CLAIMS, REQUESTS, TOPICS
from streams.cli.exits import Exit
from streams.cli.flags import SHOW, LogFlag, Show
from streams.cli.given.units_in import whole
from streams.cli.printed.output import Column, Report
from streams.cli.printed.printable import say
from streams.cli.problems import UsageProblem
from streams.cli.reading.open_log import check_on_kafka, opened, with_settings
from streams.cli.reading.there import is_lines
from streams.cli.writing import PARTITIONS_MAX, check_partitions
from streams.ledger_topics import (
    LEDGER_PARTITIONS_DEFAULT,
    REQUEST_PARTITIONS_DEFAULT,
    made_anew,
    made_with,
    open_ledger,
    remedy,
    topic_specs,
)
from streams.log.base import HIDES, Log, TopicSpec, present_of
from streams.mirror import COPIED

if TYPE_CHECKING:
    from streams.log.kafka_settings import KafkaSettings
    from streams.log.kafka_topics import TopicDifference

app = App(name="topics", help="The topics of a ledger: make them, check them.")

SingleBroker = Annotated[bool, Parameter(negative=(), help="One copy of each record is meant: a disk lost is data lost.")]

COLUMNS = [
    Column(name="topic"),
    Column(name="partitions", right=True),
    Column(name="key"),
    Column(name="kept"),
    Column(name="written_by", title="written by", wide=True),
    Column(name="found", alarm=lambda found: found not in {"as needed", "left out of a copy"}),
]


TIMES_OF_WRITERS: Final = (
    "records have the times of their writers' clocks (message.timestamp.type=CreateTime): where one of those is wrong, claims are "
    "confirmed, and expire, too early or too late"
)
TIMES_OF_BROKERS: Final = (
    "kafka-configs.sh --alter --topic PREFIX.TOPIC --add-config message.timestamp.type=LogAppendTime, for each, unless this is a mirror "
    "or a restored archive; `claimlog copy` does so itself when it is done"
)


@runtime_checkable
class Configured(Protocol):
    """A log whose topics have settings of their own: Kafka."""

    settings: KafkaSettings

    def differences(self, topics: list[TopicSpec]) -> list[TopicDifference]:
        """What is not as it must be."""
        ...


class Missing(Struct, frozen=True):
    """A topic that is not there, or has another number of partitions."""

    topic: str
    says: str
    is_of_mirrors: bool = False

    def __str__(self) -> str:
        return f"topic {self.topic!r}: {self.says}"


@app.command
def apply(
    *,
    log: LogFlag = None,
    ledger_partitions: Annotated[
        int | None, Parameter(converter=whole, show_default=False, help="Partitions of claims, 4 if left out; never changes.")
    ] = None,
    request_partitions: Annotated[
        int | None, Parameter(converter=whole, show_default=False, help="Partitions of requests, 8 if left out; never changes.")
    ] = None,
    single_broker: SingleBroker = False,
    show: Show = SHOW,
) -> int:
    """Make the topics that are missing and open each partition of claims; what is there is only compared. Doing it twice does nothing."""
    for flag, number in (("--ledger-partitions", ledger_partitions), ("--request-partitions", request_partitions)):
        if number is not None and not 1 <= number <= PARTITIONS_MAX:
            raise UsageProblem(f"{flag} {number}: expected 1 to {PARTITIONS_MAX}")
    show.check(Report(columns=COLUMNS, items=()))
    with with_settings(_settings(log, single_broker=single_broker)), opened(log, create=True) as target:
        there = target.topics()
        check_partitions(there, "--ledger-partitions", ledger_partitions, CLAIMS)
        check_partitions(there, "--request-partitions", request_partitions, REQUESTS)
        made = open_ledger(
            target,
            ledger_partitions=ledger_partitions or there.get(CLAIMS, LEDGER_PARTITIONS_DEFAULT),
            request_partitions=request_partitions or made_with(there, "requests", REQUEST_PARTITIONS_DEFAULT),
            whole=True,
        )
        if made:
            say(made_anew(made))
        return _told(target, show)


@app.command
def check(
    *,
    log: LogFlag = None,
    single_broker: SingleBroker = False,
    show: Show = SHOW,
) -> int:
    """Compare the topics with what a ledger needs; exit 3 where something differs."""
    with with_settings(_settings(log, single_broker=single_broker)), opened(log, for_work=True) as target:
        return _told(target, show)


def _settings(log: str | None, *, single_broker: bool) -> list[str]:
    """What is to be known of the log besides its address. Raises UsageProblem where that would mean nothing to it."""
    if single_broker:
        check_on_kafka("--single-broker", log)
    return ["single-broker=true"] if single_broker else []


def _told(log: Log, show: Show) -> int:
    found: dict[str, list[str]] = {}
    compared = differences(log)
    for difference in compared:
        found.setdefault(difference.topic, []).append(str(difference).partition(": ")[2])
    counts = log.topics()
    items: list[dict[str, Any]] = [
        {
            "topic": topic.name,
            "partitions": counts.get(topic.name),
            "key": topic.key or None,
            "kept": topic.kept,
            "written_by": topic.written_by,
            "found": "; ".join(found.get(topic.name, [])) or ("as needed" if topic.name in counts else "left out of a copy"),
        }
        for topic in TOPICS.values()
    ]
    show.write(Report(columns=COLUMNS, items=items))
    mirrored = of_mirrors(compared)
    if mirrored:
        say(f"{', '.join(mirrored)}: {TIMES_OF_WRITERS}; {TIMES_OF_BROKERS}")
    if isinstance(now := present_of(log), Configured):
        from streams.log.kafka_topics import TopicDifference, commands

        for command in commands([each for each in compared if isinstance(each, TopicDifference)], now.settings.topic):
            say(command)
    return Exit.FINDINGS if len(compared) > len(mirrored) else Exit.DONE


def _ledger_partitions(log: Log, there: Mapping[str, int]) -> int:
    """How many the ledger was opened with; where that is not at hand, how many there are."""
    return opened_partitions(log) or there.get(CLAIMS) or made_with(there, "ledger", LEDGER_PARTITIONS_DEFAULT)


def of_mirrors(compared: Sequence[TopicDifference | Missing]) -> list[str]:
    """The topics that are as only a mirror or a restored archive is meant to be."""
    return [difference.topic for difference in compared if difference.is_of_mirrors]


def differences(log: Log) -> Sequence[TopicDifference | Missing]:
    """Where the topics of a log are not what a ledger needs."""
    there = log.topics()
    specs = topic_specs(_ledger_partitions(log, there), made_with(there, "requests", REQUEST_PARTITIONS_DEFAULT))
    if isinstance(now := present_of(log), Configured):
        found_there = now.differences(specs)
        return [replace(each, expected=f"{remedy(log, each.topic)}. {HIDES}") if each.is_missing else each for each in found_there]
    found: list[Missing] = []
    if is_lines(log):  # A copy of a ledger, which leaves out what is derived.
        specs = [spec for spec in specs if spec.name in COPIED]
    for spec in specs:
        if spec.name not in there:
            found.append(Missing(spec.name, f"missing; {remedy(log, spec.name)}"))
        elif there[spec.name] != spec.partitions:
            found.append(Missing(spec.name, f"{there[spec.name]} partitions, not {spec.partitions}"))
    return found
