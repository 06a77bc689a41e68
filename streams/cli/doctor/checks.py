"""The checks of `claimlog doctor`: each looks at one thing and says ok, warn or fail, what it saw, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, getrlimit
from typing import Literal

from msgspec import Struct

from projections.digests import Published, read_digests
from projections.ledger import Ledger
from projections.ledger_state import Step
from projections.observed import Observed
from projections.reading import where_archived
from projections.rules import SKEW_MS
from projections.snapshots import damaged_at, newest_chunk
from schemas.claims import PartitionOpened
from schemas.codec import decode, decode_keyed
from schemas.few import few
from schemas.findings import LeakConfirmed
from schemas.results import NodeResources
from schemas.topics import AUDITS, CLAIMS, DEAD_LETTERS, DIGESTS, FOLDED, LIFECYCLE, NODE_RESOURCES, REQUESTS, RESULTS, SNAPSHOTS, TOPICS
from schemas.units import mib_text
from streams.cli.printed import units
from streams.cli.reading.state import State
from streams.ledger_topics import LATER_TOPICS, check_topics
from streams.log.base import Log, LogDamaged, LogError, LogUnreachable, Partition, Record, TopicMismatch
from streams.log.reading import places
from streams.reconciler import CARRIERS, SOURCES
from streams.scheduler import GROUP as SCHEDULERS
from streams.topology import WATCHED_TOPICS

# A processor publishes rows with every batch and a snapshot every 10,000 records: twice that behind means that it does not keep up.
ROWS_BEHIND_MAX = 5_000
SNAPSHOT_BEHIND_MAX = 20_000
UNREAD_MS = 5_000
"""Where many write there is always something that came since the last commit, and those are a second apart."""
ROOM_LOW_BYTES, ROOM_NONE_BYTES = 1 << 30, 64 << 20
"""An hour of a busy fleet is some hundred MiB; SQLite's WAL takes 16 MiB before it is folded back, a snapshot of a large fleet as much."""
LIBRARIES = ("apsw", "msgspec", "isal", "rocksdict", "confluent-kafka", "faust-streaming", "cyclopts", "numpy")
# A SQLite from 3.7.0 to 3.51.2 may lose acknowledged records when its WAL starts anew.
SQLITE_SOUND = (3, 51, 3)

NTP = "check NTP on all brokers and writers, and here"

Status = Literal["ok", "warn", "fail"]


class Check(Struct, frozen=True):
    """One line: how it stands, what was looked at, what was seen, and the way to mend it."""

    status: Status
    check: str
    says: str
    fix: str = ""


def integrity(log: Log, progress: Callable[[int], None]) -> Check:
    """Every record but those of snapshots, of archived history too, read and checked; `progress` hears how many more are done."""
    verify, history = getattr(log, "verify", None), getattr(log, "verify_history", None)
    if verify is None and history is None:
        return Check("ok", "integrity", "this kind of log checks what it reads; there is nothing of its own to check")
    seen: dict[Partition, int] = {}

    def told(partition: Partition, offset: int, _: int) -> None:
        progress(offset - seen.get(partition, log.start(*partition)))
        seen[partition] = offset

    try:
        count = 0 if history is None else history(told, without=(SNAPSHOTS,))
    except LogDamaged as problem:
        return Check("fail", "integrity", str(problem), "restore that file of CLAIMLOG_ARCHIVE from a backup; the log was not looked at")
    if verify is None:
        says = f"{units.count(count)} records of the archive, every checksum fits; the log itself checks what it reads"
        return Check("ok", "integrity", says)
    try:
        count += verify(told, without=(SNAPSHOTS,))
    except LogDamaged as problem:
        fix = "copy the log's files away, then restore a backup under a new name, or read what is good with `claimlog events`"
        return Check("fail", "integrity", str(problem), fix)
    return Check("ok", "integrity", f"{units.counted(count, 'record')}, every checksum fits")


def history(log: Log) -> Check:
    """With an archive: does it lead to the log from the first record on, in every topic that is kept for ever?"""
    kept = places(log, *[topic for topic, spec in TOPICS.items() if spec.kept == "ever"])
    try:
        lacking = [f"{place} below {start}" for place in kept if (start := log.start(*place)) > 0]
    except LogUnreachable:
        raise
    except LogError as problem:
        return Check("fail", "history", str(problem), "restore that part of CLAIMLOG_ARCHIVE, or let this user read it")
    if not lacking:
        return Check("ok", "history", f"archive and log together have all of {len(kept)} partitions, from the first record on")
    fix = "restore their files to CLAIMLOG_ARCHIVE: answers about moments among these records exit 6"
    return Check("warn", "history", f"neither archive nor log has {few(lacking)}", fix)


def left_of_limit(path: Path) -> int | None:
    """How much more this process may write to the log's files (`ulimit -f`); None without such a limit. Others may have another."""
    most, _ = getrlimit(RLIMIT_FSIZE)
    if most == RLIM_INFINITY:
        return None
    return max(0, most - max(each.stat().st_size for each in path.parent.glob(f"{path.name}*")))


def room(path: Path, free_bytes: int, left_bytes: int | None = None) -> Check:
    """Is there room to append? A log on a full disk takes nothing, and whoever works on it waits; `left_bytes` are those of a limit."""
    if left_bytes is not None and left_bytes < min(free_bytes, ROOM_LOW_BYTES):
        says = f"{path} may grow by {mib_text(left_bytes >> 20)}, says the limit of this process"
        return Check("fail" if left_bytes < ROOM_NONE_BYTES else "warn", "room", says, "raise it for whoever works on the log: `ulimit -f`")
    says = f"{mib_text(free_bytes >> 20)} free where {path} is"
    if free_bytes >= ROOM_LOW_BYTES:
        return Check("ok", "room", says)
    if free_bytes < ROOM_NONE_BYTES:
        makes = "make room there of other files, as `claimlog archive` needs some, too: whoever waits for it goes on by itself"
        return Check("fail", "room", says, makes)
    return Check("warn", "room", says, "make room there, or move history elsewhere (`claimlog archive`): what is new takes its place")


def file_topics(log: Log) -> Check:
    """Topics of a file: whoever wrote it chose some, so those that are there have to belong together and no more."""
    there = log.topics()
    known = [there[topic] for topic in FOLDED if topic in there]
    if not known:
        says = f"neither {CLAIMS} nor observations are in it, so nothing can be folded"
        return Check("fail", "topics", says, "`claimlog copy FILE.jsonl` writes a whole history")
    other = sorted(there.keys() - TOPICS.keys())
    says = f"{len(there)} of {len(TOPICS)} topics, as it is a file" + (f"; none of ours: {', '.join(other)}" if other else "")
    return Check("ok", "topics", f"{says}; {units.counted(max(known), 'partition')} of the ledger")


def file_lags() -> Check:
    """What there is to say of who is behind in a file: nothing."""
    says = "nobody works on a file: who is behind, published rows and snapshots do not apply"
    return Check("ok", "work", says)


def topic_set(log: Log) -> Check:
    """All topics, with numbers of partitions that belong together."""
    there = log.topics()
    try:
        check_topics(log)
    except TopicMismatch as problem:
        return Check("fail", "topics", str(problem), "`claimlog topics check` says what each has, and what to do about it")
    said = f"{len(there)} topics; {units.counted(there[CLAIMS], 'partition')} of the ledger, {there[REQUESTS]} of requests"
    if later := sorted(LATER_TOPICS - there.keys()):
        said += f"; {', '.join(later)} is missing, so each start of a scheduler reads all results"
        return Check("warn", "topics", said, "`claimlog topics apply` makes it; then start schedulers and workers again")
    return Check("ok", "topics", said)


def ledger_opened(log: Log) -> Check:
    """Record 0 of each partition of `claims` says which ledger it is of, and all say the same."""
    count, ids = log.topics().get(CLAIMS, 0), set()
    for number in range(count):
        place = f"{CLAIMS}/{number}"
        if log.start(CLAIMS, number) > 0:
            continue
        records = log.read(CLAIMS, number, 0, 1)
        opened = decode(CLAIMS, records[0].value) if records else None
        if not isinstance(opened, PartitionOpened):
            what = "its first record is not partition-opened" if records else "it is empty"
            fix = "`claimlog run` opens an empty partition of a ledger that begins; had it records, restore them. Any other is no ledger"
            return Check("fail", "ledger", f"{place} is not opened: {what}", fix)
        if (opened.partition, opened.partitions) != (number, count):
            said = f"opened as partition {opened.partition} of {opened.partitions}, it is {number} of {count}"
            return Check("fail", "ledger", f"{place}: {said}", "the topic was made anew or renamed; restore it")
        ids.add(opened.ledger_id)
    if len(ids) > 1:
        fix = "restore all partitions from one backup"
        return Check("fail", "ledger", f"partitions of {len(ids)} ledgers: {', '.join(sorted(ids))}", fix)
    if not count:
        return Check("ok", "ledger", f"{CLAIMS} is not in it: observations are folded as they would be carried")
    return Check("ok", "ledger", f"opened, id {next(iter(ids), 'archived')}")


def clock(log: Log, now_ms: int) -> Check:
    """The newest append time must not be ahead of this machine's clock."""
    # On an embedded log producers stamp what they append by clocks of their own; who carries it into `claims` may have another.
    lasts = [record for topic in (CLAIMS, REQUESTS, RESULTS, AUDITS, LIFECYCLE) for record in _last_of(log, topic)]
    if not lasts:
        return Check("ok", "clock", "nothing is appended yet")
    newest = max(lasts, key=lambda record: record.time_ms)
    if newest.time_ms > now_ms + SKEW_MS:
        said = f"the newest record, {newest.position}, is {units.span(newest.time_ms - now_ms)} ahead of this machine's clock"
        held = _held_until(f"{CLAIMS}/{newest.partition}", newest.time_ms) if newest.topic == CLAIMS else ""
        return Check("warn", "clock", said, NTP + held)
    return Check("ok", "clock", f"newest record {units.ago(newest.time_ms, now_ms)}")


def times_ahead(state: State, now_ms: int) -> Iterator[Check]:
    """A partition's time, the largest append time so far, must not be ahead either: it does not go back with a clock that was."""
    ahead = {f"{CLAIMS}/{number}": ledger.time_ms for number, ledger in state.ledgers.items() if ledger.time_ms > now_ms + SKEW_MS}
    if ahead:
        latest_ms, named = max(ahead.values()), few([*ahead])
        up_to = "" if len(ahead) == 1 else "up to "
        said = f"the time of {named} is {up_to}{units.span(latest_ms - now_ms)} ahead of this machine's clock"
        yield Check("warn", "clock", said, NTP + _held_until(named, latest_ms))


def _held_until(places: str, time_ms: int) -> str:
    # A partition's time never goes back: audits taken by right clocks are older than every claim until then.
    held = f"claims of {places} are neither confirmed nor expire, and no finding there is confirmed"
    return f"; if this machine's clock is right, until {units.moment(time_ms)} {held}"


def behind(log: Log, name: str, group: str, topics: tuple[str, ...], fix: str, now_ms: int) -> Check:
    """How many records of `topics` a group has still to read, and whether that is more than what has just come."""
    lag, oldest, lost = 0, None, list[str]()
    for topic in topics:
        if topic not in log.topics():
            continue
        committed = log.committed(group, topic)
        for number, end in log.ends(topic).items():
            start = log.start(topic, number)
            first = max(committed.get(number, 0), start)
            if number in committed and committed[number] < start and TOPICS[topic].kept == "ever":
                lost.append(f"{topic}/{number}@{committed[number]} to {start - 1}")
            if first < end:
                lag += end - first
                try:
                    oldest_ms = log.read(topic, number, first, 1)[0].time_ms
                except LogDamaged:
                    if topic != SNAPSHOTS:
                        raise
                    continue  # told as damage to snapshots
                oldest = oldest_ms if oldest is None else min(oldest, oldest_ms)
    if lost:
        says = f"records that it had not read are not at hand ({', '.join(lost)}): archived, deleted, or gone by a retention"
        return Check("warn", name, says, "who asked there is not answered: ask again; hosts say again what is there")
    if not lag:
        return Check("ok", name, "has read everything")
    if oldest is not None and abs(now_ms - oldest) <= UNREAD_MS:
        return Check("ok", name, f"has read all but the last {units.counted(lag, 'record')}, the oldest from {units.ago(oldest, now_ms)}")
    since = "" if oldest is None else f", the oldest from {units.moment(oldest)}"
    return Check("warn", name, f"{units.counted(lag, 'record')} behind{since}", fix)


def lags(log: Log, now_ms: int) -> Iterator[Check]:
    """Who is behind."""
    run = "is `claimlog run` on? it carries on where it stopped"
    yield behind(log, "reconciler", CARRIERS, SOURCES, run, now_ms)
    place = "is a scheduler on? `claimlog run` or `claimlog run --only scheduler`"
    yield behind(log, "schedulers", SCHEDULERS, (REQUESTS,), place, now_ms)
    yield behind(log, "dead-letter watcher", "watcher", WATCHED_TOPICS, run, now_ms)
    rows = {}
    for record in _last_of(log, NODE_RESOURCES):
        event = decode_keyed(NODE_RESOURCES, record.key, record.value)
        if isinstance(event, NodeResources):
            rows[record.partition] = event.offset
    yield _published(log, "node rows", rows, ROWS_BEHIND_MAX, run)


def snapshots(log: Log, *, quick: bool) -> Check:
    """Snapshots can be read, and are not far behind. Ask last: a log may serve nothing beyond damage that it has met."""
    newest, damaged, others = {}, list[str](), set[int]()
    for number in range(log.topics().get(SNAPSHOTS, 0)):
        if (chunk := newest_chunk(log, number, damaged.append, others.add)) is not None:
            newest[number] = chunk.offset
        if not quick and (place := damaged_at(log, number)) and not any(said.startswith(f"{place} ") for said in damaged):
            damaged.append(f"{place}: no snapshot, or not as it was written; nobody needs it while the newest is sound")
    if damaged:
        fix = "`claimlog snapshot write` writes new ones from the ledger and drops what is damaged"
        return Check("fail", "snapshots", "; ".join(damaged), fix)
    gone = [f"{place}@{start}" for place in places(log, CLAIMS) if (start := log.start(*place)) > newest.get(place.number, -1) + 1]
    if gone:
        fix = f"{where_archived(log)}; without an archive start a worker that has its tables again: it writes one"
        none = f"none{f' but of {_versions(others)}' if others else ''} includes what left the log below {', '.join(gone)}"
        return Check("fail", "snapshots", f"{none}, so nobody can begin there", fix)
    if others:
        says = f"the newest are of {_versions(others)}, which this version of claimlog passes over"
        return Check("warn", "snapshots", says, "`claimlog snapshot write` writes some that it begins at")
    run = "a start folds from the first record; is `claimlog run` on? it carries on where it stopped"
    return _published(log, "snapshots", newest, SNAPSHOT_BEHIND_MAX, run)


def _versions(others: set[int]) -> str:
    return f"state version {few(sorted(others))}"


def _published(log: Log, name: str, published: Mapping[int, int], behind_max: int, fix: str) -> Check:
    """How far behind the ledger's ends the newest published rows or snapshots are."""
    ends = log.ends(CLAIMS) if CLAIMS in log.topics() else {}
    newest = dict.fromkeys(ends, -1) | dict(published)
    lag = {number: end - 1 - newest[number] for number, end in ends.items()}
    worst = max(lag.values(), default=0)
    if worst <= behind_max:
        if all(offset < 0 for offset in newest.values()):
            return Check("ok", name, "none yet, and none is needed yet")
        return Check("ok", name, f"at most {units.counted(max(0, worst), 'record')} of a partition behind")
    return Check("warn", name, f"{units.counted(worst, 'record')} behind {CLAIMS}/{max(lag, key=lag.__getitem__)}", fix)


def dead_letters(log: Log) -> Check:
    """Messages that count for nothing."""
    count = sum(log.end(*place) - log.start(*place) for place in places(log, DEAD_LETTERS))
    if not count:
        return Check("ok", "dead letters", "none")
    return Check("warn", "dead letters", f"{units.counted(count, 'message')} that could not be used", "claimlog dead-letters list")


def findings(state: State) -> Check:
    """Open findings of the leak audit. What the operator said to ignore alarms nobody."""
    every = state.findings()
    found = [finding for finding in every if not finding.ignored]
    more = f"; {len(every) - len(found)} more, ignored" if len(every) > len(found) else ""
    confirmed = sum(isinstance(finding, LeakConfirmed) for finding in found)
    if not found:
        return Check("ok", "findings", f"none is open{more}")
    return Check("warn", "findings", f"{confirmed} confirmed, {len(found) - confirmed} suspected{more}", "claimlog leaks --explain")


class DigestWatch:
    """Compares the digests that processes published with a fold of the same records; hand it to `state_at`."""

    def __init__(self, log: Log) -> None:
        self._published: dict[tuple[int, int], list[Published]] = {}
        for number in range(log.topics().get(DIGESTS, 0)):
            for published in read_digests(log, number):
                self._published.setdefault((number, published.digest.offset), []).append(published)
        self.compared = 0
        self.wrong: list[str] = []

    def __call__(self, ledger: Ledger, observed: Observed, step: Step) -> None:
        """See `state.Each`."""
        del observed
        for published in self._published.get((ledger.partition, step.offset), ()):
            if not published.is_about(step.time_ms):
                continue
            self.compared += 1
            if published.digest.digest != ledger.digest.hex():
                self.wrong.append(f"{published.who()} at {CLAIMS}/{ledger.partition}@{step.offset}")

    def check(self) -> Check:
        """Whether the published digests are those of this fold."""
        if self.wrong:
            who = ", ".join(self.wrong[:3])
            says = f"{len(self.wrong)} of {self.compared} differ from this fold: {who}"
            return Check("fail", "digests", says, "stop and start these; they fold anew. claimlog replay --verify says more")
        return Check("ok", "digests", f"{self.compared} published, all equal to this fold" if self.compared else "none published yet")


def installed(sqlite: str) -> Iterator[Check]:
    """What is installed here."""
    found = []
    for library in LIBRARIES:
        try:
            found.append(f"{library} {version(library)}")
        except PackageNotFoundError:
            yield Check("fail", "libraries", f"{library} is missing", "install claimlog anew: pip install claimlog")
    yield Check("ok", "libraries", ", ".join(found))
    sound = tuple(int(part) for part in sqlite.split(".")[:3]) >= SQLITE_SOUND
    fix = "" if sound else "pip install --upgrade apsw"
    yield Check("ok" if sound else "fail", "sqlite", f"{sqlite} in apsw" + ("" if sound else ", which may lose acknowledged records"), fix)
    has = find_spec("libvirt") is not None
    says = "the module is installed" if has else "not installed; only `claimlog produce libvirt` needs it"
    yield Check("ok", "libvirt", says, "" if has else "pip install 'claimlog[libvirt]'")


def _last_of(log: Log, topic: str) -> Iterator[Record]:
    """The last record of each partition that has one."""
    for place in places(log, topic):
        end = log.end(*place)
        if end > log.start(*place):
            yield from log.read(*place, end - 1, 1)
