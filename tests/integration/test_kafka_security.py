"""TLS, SASL and ACLs on a broker that insists on them: the users of docs/kafka.md do their work, and others hear why they may not."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined] # public, though not in its __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from projections import filed
from schemas import topics
from schemas.codec import encode
from schemas.requests import Flavor, PlacementRequested
from schemas.topics import ANSWERED, AUDITS, CLAIMS, DEAD_LETTERS, LIFECYCLE, NODE_RESOURCES, REQUESTS, RESULTS, SNAPSHOTS, TOPICS, VERDICTS
from streams.ledger_topics import LATER_TOPICS
from streams.log.base import LogError, Message
from streams.log.kafka import KafkaLog
from streams.log.kafka_errors import NOT_ALLOWED
from streams.log.kafka_settings import parse_settings
from streams.placement import filing
from streams.scheduler import Scheduler
from tests.faults.harness import CLAIMLOG, ROOT, Process, until, until_known
from tests.kafka_broker import Broker, NoBroker, bootstrap

PAGE = ROOT / "docs" / "kafka.md"
PREFIX = "fleet"
USERS = ("producer", "requester", "scheduler", "processor", "operator")
PATIENCE_SECONDS = 60.0
# Librdkafka tries for 5 s; the rest is for starting a process on a busy machine.
REFUSED_SECONDS = 30.0
ASKED = 40
LISTENER = """
listeners=PLAINTEXT://127.0.0.1:{{port}},SASL_SSL://127.0.0.1:{{second}},CONTROLLER://127.0.0.1:{{controller}}
advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},SASL_SSL://127.0.0.1:{{second}}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL
listener.name.sasl_ssl.ssl.keystore.type=PEM
listener.name.sasl_ssl.ssl.keystore.location={keystore}
listener.name.sasl_ssl.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
listener.name.sasl_ssl.plain.sasl.jaas.config={plain} required user_plain="plain-secret";
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={scram} required;
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:plain
"""


def certificate(folder: Path, name: str) -> None:
    """A certificate that vouches for itself, good for this machine: NAME.pem and NAME.key."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    files = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")]
    names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, *files, *names], check=True, capture_output=True)


class Secured:
    """A broker with a listener for SASL over TLS, and the users of the page with the rights that the page gives them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[Process] = []
        self.begun: list[subprocess.Popen[str]] = []
        for name in ("broker", "stranger"):
            certificate(folder, name)
        keystore = folder / "keystore.pem"
        keystore.write_text((folder / "broker.key").read_text() + (folder / "broker.pem").read_text())
        modules = {kind: f"org.apache.kafka.common.security.{kind}.{kind.title()}LoginModule" for kind in ("plain", "scram")}
        self.broker = Broker(folder / "kafka", LISTENER.format(keystore=keystore, **modules))

    def prepare(self) -> None:
        """Users and ACLs, by the listener that asks for nothing."""
        admin = AdminClient({"bootstrap.servers": self.broker.address})
        made = admin.create_acls([binding for command in acl_commands() for binding in bindings(command)])
        for future in made.values():
            future.result()
        self.add(*USERS)

    def add(self, *users: str) -> None:
        """More users, each with its settings and its password in a file."""
        admin, how = AdminClient({"bootstrap.servers": self.broker.address}), ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        given = admin.alter_user_scram_credentials([UserScramCredentialUpsertion(user, how, f"{user}-secret".encode()) for user in users])
        for future in given.values():
            future.result()
        for user in users:
            (self.folder / f"{user}.password").write_text(f"{user}-secret\n")
            (self.folder / f"{user}.conf").write_text(
                f"# as a site would have it\nsecurity.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.username={user}\n"
                f"ssl.ca.location={self.folder}/broker.pem\n"
            )

    @contextmanager
    def without(self, user: str, kind: ResourceType, name: str, operation: AclOperation) -> Iterator[None]:
        """One right of a user taken away for a while; `name` as the page has it, behind the prefix."""
        admin = AdminClient({"bootstrap.servers": self.broker.address})
        every, allows = ResourcePatternType.ANY, AclPermissionType.ALLOW
        right = AclBindingFilter(kind, f"{PREFIX}.{name}", every, f"User:{user}", "*", operation, allows)
        (taken,) = [future.result() for future in admin.delete_acls([right]).values()]
        assert len(taken) == 1
        try:
            yield
        finally:
            for future in admin.create_acls(list(taken)).values():
                future.result()

    @contextmanager
    def denied(self, user: str, kind: ResourceType, name: str, operation: AclOperation) -> Iterator[None]:
        """One right denied to a user for a while, of one topic or group; what it may of the others stays."""
        admin = AdminClient({"bootstrap.servers": self.broker.address})
        place = (kind, f"{PREFIX}.{name}", ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.DENY)
        for future in admin.create_acls([AclBinding(*place)]).values():
            future.result()
        try:
            yield
        finally:
            for future in admin.delete_acls([AclBindingFilter(*place)]).values():
                future.result()

    @property
    def place(self) -> str:
        return f"kafka://127.0.0.1:{self.broker.second_port}/{PREFIX}"

    def environment(self, user: str, password: str = "") -> dict[str, str]:
        """A file of settings, and the password in a file of its own."""
        secret = self.folder / (f"{user}.password" if not password else f"{user}.wrong")
        if password:
            secret.write_text(password)
        return {
            "CLAIMLOG_LOG": f"{self.place}?single-broker=true",
            "CLAIMLOG_KAFKA_CONFIG": str(self.folder / f"{user}.conf"),
            "CLAIMLOG_KAFKA_SASL_PASSWORD_FILE": str(secret),
        }

    def run(self, user: str, *arguments: str, password: str = "") -> subprocess.CompletedProcess[str]:
        """A verb as that user, to its end."""
        running = self.begin(user, *arguments, password=password)
        out, err = running.communicate(timeout=PATIENCE_SECONDS)
        return subprocess.CompletedProcess(running.args, running.returncode, out, err)

    def begin(self, user: str, *arguments: str, password: str = "") -> subprocess.Popen[str]:
        """The same, not waited for."""
        environ = {**os.environ, **self.environment(user, password)}
        command = [*CLAIMLOG, *arguments]
        running = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.begun.append(running)
        return running

    def start(self, user: str, *arguments: str) -> Process:
        """A process that goes on, as that user."""
        environ = [f"{name}={value}" for name, value in self.environment(user).items()]
        process = Process(user, ["env", *environ, *CLAIMLOG, *arguments], self.folder / f"{user}.err")
        self.processes.append(process)
        process.start()
        return process

    def opened(self, user: str) -> KafkaLog:
        """The log as that user sees it."""
        environ = self.environment(user)
        return KafkaLog.open(parse_settings(environ["CLAIMLOG_LOG"], environ))

    def end(self) -> None:
        """Leave nothing behind."""
        for running in self.begun:
            if running.poll() is None:
                running.kill()
                running.communicate()
        for process in self.processes:
            if process.running is not None:
                process.running.kill()
                process.running.wait()
        self.broker.stop()


def acl_commands() -> list[list[str]]:
    """The page's commands, word by word."""
    text = PAGE.read_text().replace("\\\n", " ")
    every = re.search(r"^ALL='(.*)'$", text, re.MULTILINE)
    assert every is not None, f"{PAGE.name} says who ALL are"
    lines = re.findall(r"^may (.*)$", text, re.MULTILINE)
    return [shlex.split(line.replace("$ALL", every[1])) for line in lines]


def bindings(words: list[str]) -> Iterator[AclBinding]:
    """What kafka-acls makes of one command."""
    given: dict[str, list[str]] = {}
    names = iter([word for word in words if word != "--cluster"])
    for name in names:
        given.setdefault(name, []).append(next(names))
    pattern = ResourcePatternType[given.pop("--resource-pattern-type", ["literal"])[0].upper()]
    places = [(ResourceType.TOPIC, name) for name in given.pop("--topic", [])] + [
        (ResourceType.GROUP, name) for name in given.pop("--group", [])
    ]
    if "--cluster" in words:
        places.append((ResourceType.BROKER, "kafka-cluster"))
    operations = [AclOperation[re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()] for name in given.pop("--operation")]
    users = given.pop("--allow-principal")
    assert not given, f"the test does not know {', '.join(given)}"
    for kind, name in places:
        for user in users:
            for operation in operations:
                yield AclBinding(kind, name, pattern, user, "*", operation, AclPermissionType.ALLOW)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    bootstrap()
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: apt install openssl")
    found = Secured(tmp_path_factory.mktemp("secured"))
    try:
        found.broker.start()
    except NoBroker as reason:
        pytest.skip(f"no Kafka broker of our own: {reason}")
    try:
        found.prepare()
        made = found.run("operator", "topics", "apply", "--ledger-partitions", "2", "--request-partitions", "2")
        assert made.returncode == 0, made.stderr
        yield found
    finally:
        found.end()


def at_work(secured: Secured) -> tuple[Process, Process]:
    """Four nodes, and the processor and the scheduler that know them."""
    assert secured.run("producer", "produce", "load", "--nodes", "4", "--once").returncode == 0
    processor = secured.start("processor", "run", "--only", "processor", "--state", str(secured.folder / "state"))
    scheduler = secured.start("scheduler", "run", "--only", "scheduler")
    with secured.opened("operator") as log:
        until_known(log, 4)
    return processor, scheduler


def test_each_user_of_the_page_does_its_work_over_tls_with_its_own_password(secured: Secured) -> None:
    processor, scheduler = at_work(secured)

    placed = secured.run("requester", "place", "--request", "r-1", "--vcpus", "1", "--memory", "1GiB", "--wait", "60s")

    assert placed.returncode == 0, (placed.stderr, processor.said(), scheduler.said())
    shown = secured.run("requester", "nodes", "-o", "value", "-c", "node_id")
    assert (shown.returncode, len(shown.stdout.splitlines())) == (0, 4)
    assert "FATAL" not in shown.stderr
    drained = secured.run("operator", "node", "disable", "node-00001", "--reason", "new memory")
    assert drained.returncode == 0, drained.stderr
    until(lambda: secured.run("operator", "doctor", "--quick").returncode == 0, PATIENCE_SECONDS, "the doctor finds all well")
    assert [processor.stop(), scheduler.stop()] == [0, 0]


def test_a_ledger_without_a_later_topic_goes_on_under_users_that_may_not_make_it(secured: Secured) -> None:
    admin = AdminClient({"bootstrap.servers": secured.broker.address})
    later = {f"{PREFIX}.{name}" for name in LATER_TOPICS}
    for future in admin.delete_topics(sorted(later)).values():
        future.result()
    until(lambda: not later & admin.list_topics(timeout=10).topics.keys(), PATIENCE_SECONDS, "the topics are gone")
    processor, scheduler = at_work(secured)

    placed = secured.run("requester", "place", "--request", "r-2", "--vcpus", "1", "--memory", "1GiB", "--wait", "60s")
    missed = secured.run("operator", "topics", "check")
    made = secured.run("operator", "topics", "apply")

    assert placed.returncode == 0, (placed.stderr, scheduler.said())
    assert (missed.returncode, made.returncode) == (3, 0)
    assert missed.stdout.count("missing; `claimlog topics apply` makes it") == len(LATER_TOPICS)
    assert [processor.stop(), scheduler.stop()] == [0, 0]


def test_a_scheduler_that_may_not_write_a_later_topic_goes_on_without_it(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filing, "KEPT_MS", 0)
    monkeypatch.setattr(filed, "SAID_REQUESTS", 1)
    told = list[str]()
    assert secured.run("producer", "produce", "load", "--nodes", "4", "--once").returncode == 0
    asked = answers = 0

    without = secured.without("scheduler", ResourceType.TOPIC, ANSWERED, AclOperation.WRITE)
    with without, secured.opened("scheduler") as log, secured.opened("requester") as asking:
        scheduler = Scheduler(log, "without a right", tell=told.append)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (not told or answers < ASKED) and time.monotonic() < deadline:
            if not told or asked < ASKED:
                asked += 1
                request = PlacementRequested(request_id=f"without-{asked}", flavor=Flavor(vcpus=1, memory_mib=64))
                asking.append([Message(REQUESTS, request.request_id.encode(), encode(request))])
            scheduler.turn(0.05)
            answers = scheduler.placer.counters.placed + sum(scheduler.placer.counters.failed.values())
        scheduler.close()

    assert answers >= ASKED
    assert len(told) == 1
    assert told[0].startswith("answered-requests: this user may not write it")


def test_a_user_that_may_not_write_a_topic_is_told_so_and_where_it_says_who_may(secured: Secured) -> None:
    began = time.monotonic()
    refused = secured.run("producer", "node", "disable", "node-00001", "--reason", "mischief")

    assert refused.returncode == 1
    assert "Topic authorization failed" in refused.stderr
    assert "This user may not; who may do what to which topic: docs/kafka.md" in refused.stderr
    assert time.monotonic() - began < REFUSED_SECONDS


def test_a_wrong_password_and_a_certificate_nobody_vouches_for_end_with_5_and_the_reason(secured: Secured) -> None:
    stranger = ("-X", f"ssl.ca.location={secured.folder}/stranger.pem")
    verbs = {
        "invalid credentials": [
            ("topics", "check"),
            ("run", "--only", "processor", "--state", str(secured.folder / "wrong")),
            ("run", "--only", "scheduler"),
        ],
        "certificate verify failed": [("topics", "check", *stranger), ("run", "--only", "scheduler", *stranger)],
    }
    asked = [
        (reason, secured.begin("operator", *verb, password="guessed" if reason == "invalid credentials" else ""))
        for reason, each in verbs.items()
        for verb in each
    ]

    ended = [(reason, running.communicate(timeout=REFUSED_SECONDS)[1], running.returncode) for reason, running in asked]

    for reason, said, code in ended:
        assert code == 5, said
        assert reason in said
        assert "Check security.protocol, the certificates and the SASL settings" in said


def test_plain_works_as_well_with_everything_in_the_environment(secured: Secured) -> None:
    environ = {
        "CLAIMLOG_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "CLAIMLOG_KAFKA_SASL_MECHANISM": "PLAIN",
        "CLAIMLOG_KAFKA_SASL_USERNAME": "plain",
        "CLAIMLOG_KAFKA_SASL_PASSWORD": "plain-secret",
    }
    settings = parse_settings(secured.place, environ, [f"ssl.ca.location={secured.folder}/broker.pem"])

    with KafkaLog.open(settings) as log:
        assert log.topics()[topics.CLAIMS] == 2


# The principals behind each word of `written_by` in the topic table.
WRITERS = {
    "producers": {"producer"},
    "reconciler, schedulers, operators": {"processor", "scheduler", "operator"},
    "anyone": {"requester", "operator"},
    "schedulers": {"scheduler"},
    "stream processor": {"processor"},
    "any folding process": {"processor", "scheduler"},
    "nobody": set[str](),
}
# `dead-letters redrive` appends an original to the topic that it was found on.
REDRIVEN = {topics.AUDITS, topics.LIFECYCLE}


def test_the_page_lets_write_each_topic_who_writes_it_by_the_topic_table_and_nobody_else() -> None:
    allowed: dict[str, set[str]] = {name: set() for name in TOPICS}
    for command in acl_commands():
        for binding in bindings(command):
            if binding.restype is ResourceType.TOPIC and binding.operation is AclOperation.WRITE:
                allowed[binding.name.removeprefix(f"{PREFIX}.")].add(binding.principal.removeprefix("User:"))
    rows = [(name, cells.split("|")) for name, cells in re.findall(r"^\| `([a-z-]+)` \|(.*)\|$", PAGE.read_text(), re.MULTILINE)]
    # Other tables of the page have topics in their first column as well, and fewer columns.
    users = [(name, cells) for name, cells in rows if len(cells) == len(USERS)]
    shown = {name: {user for user, cell in zip(USERS, cells, strict=True) if cell.strip()} for name, cells in users}

    expected = {name: WRITERS[topic.written_by] | ({"operator"} if name in REDRIVEN else set()) for name, topic in TOPICS.items()}

    assert (allowed, shown) == (expected, expected)


def test_doctor_goes_on_where_it_may_not_even_read_the_ledger(secured: Secured) -> None:
    """Before history is archived: it is the first record that it would read."""
    looked: list[subprocess.CompletedProcess[str]] = []

    def fails() -> bool:
        """A broker takes a moment to heed a new rule."""
        looked[:] = [secured.run("requester", "doctor", "--quick", "-o", "json")]
        return looked[0].returncode == 3

    with secured.denied("requester", ResourceType.TOPIC, CLAIMS, AclOperation.READ):
        until(fails, PATIENCE_SECONDS, "doctor fails")

    found = {item["check"]: (item["status"], NOT_ALLOWED in item["says"]) for item in json.loads(looked[0].stdout)["items"]}
    assert (found["topics"], found["ledger"]) == (("fail", True), ("fail", True))
    assert found["snapshots"][0] == found["dead letters"][0] == "ok"


def test_snapshots_are_the_processors_and_who_archives_may_delete_what_is_moved(secured: Secured) -> None:
    assert secured.run("producer", "produce", "load", "--nodes", "4", "--once").returncode == 0
    history, admin = str(secured.folder / "history"), AdminClient({"bootstrap.servers": secured.broker.address})
    names = [f"{PREFIX}.{name}" for name in (CLAIMS, AUDITS, LIFECYCLE)]
    rights = [
        AclBinding(
            ResourceType.TOPIC, name, ResourcePatternType.LITERAL, "User:processor", "*", AclOperation.DELETE, AclPermissionType.ALLOW
        )
        for name in names
    ]

    refused = secured.run("operator", "snapshot", "write")
    written = secured.run("processor", "snapshot", "write")
    kept = secured.run("processor", "archive", history, "--below", "now")
    for future in admin.create_acls(rights).values():
        future.result()
    moved = secured.run("processor", "archive", history, "--below", "now")

    assert (refused.returncode, written.returncode, kept.returncode, moved.returncode) == (1, 0, 1, 0), (written.stderr, moved.stderr)
    assert "docs/kafka.md" in refused.stderr
    assert "docs/kafka.md" in kept.stderr


@pytest.mark.parametrize(
    ("user", "operation", "group", "verb"),
    [
        ("processor", AclOperation.READ, "stream-processor", ["run", "--only", "processor", "--state", "{folder}/refused"]),
        ("requester", AclOperation.DESCRIBE, "", ["nodes"]),
    ],
    ids=["join the workers", "look for a group"],
)
def test_who_lacks_a_right_to_a_group_is_told_so_within_seconds(
    secured: Secured, user: str, operation: AclOperation, group: str, verb: list[str]
) -> None:
    with secured.without(user, ResourceType.GROUP, group, operation):
        began = time.monotonic()
        refused = secured.run(user, *(word.format(folder=secured.folder) for word in verb))
        took = time.monotonic() - began

    assert (refused.returncode, NOT_ALLOWED in refused.stderr) == (1, True), refused.stderr
    assert took < REFUSED_SECONDS


def test_who_may_not_see_a_topic_is_told_so_and_gets_no_answer_without_it(secured: Secured) -> None:
    """Observations that wait there, the policy that a scheduler has, digests that were published: an answer without them is another one."""
    looks = {AUDITS: ["nodes"], RESULTS: ["capacity", "--vcpus", "1"], SNAPSHOTS: ["snapshot", "list"]}
    told = {}
    for topic, verb in looks.items():
        with secured.denied("requester", ResourceType.TOPIC, topic, AclOperation.DESCRIBE):
            told[topic] = refused(secured, "requester", *verb)
    with secured.denied("requester", ResourceType.TOPIC, VERDICTS, AclOperation.DESCRIBE_CONFIGS):
        settings = refused(secured, "requester", "topics", "check")
        looked = secured.run("requester", "doctor", "--quick", "-o", "json")

    for topic, said in told.items():
        assert (said.returncode, said.stdout) == (6, "")
        assert f"topic {topic} is missing, so what stood there is not known" in said.stderr
    assert settings.returncode == 1
    assert f"{PREFIX}.{VERDICTS}" in settings.stderr
    assert "(DescribeConfigs)" in settings.stderr
    found = {item["check"]: item["status"] for item in json.loads(looked.stdout)["items"]}
    assert (looked.returncode, found["cluster"], found["dead letters"]) == (3, "fail", "ok")


def refused(secured: Secured, user: str, *verb: str) -> subprocess.CompletedProcess[str]:
    """What a user hears as soon as a right is gone: a broker takes a moment to heed a new rule."""
    said: list[subprocess.CompletedProcess[str]] = []

    def is_refused() -> bool:
        said[:] = [secured.run(user, *verb)]
        return said[0].returncode not in {0, 3}

    until(is_refused, PATIENCE_SECONDS, f"{' '.join(verb)} is refused")
    return said[0]


@pytest.mark.parametrize(
    ("kind", "name", "operation"),
    [(ResourceType.TOPIC, CLAIMS, AclOperation.ALTER_CONFIGS), (ResourceType.GROUP, "copies", AclOperation.READ)],
    ids=["alter claims", "mark"],
)
def test_a_copy_that_could_not_begin_for_want_of_a_right_is_no_empty_ledger(
    secured: Secured, tmp_path: Path, kind: ResourceType, name: str, operation: AclOperation
) -> None:
    source, prefix = tmp_path / "source.sqlite", f"copied-{operation.name.lower()}"
    assert secured.run("producer", "produce", "load", "--nodes", "2", "--once", "--log", f"sqlite:{source}").returncode == 0
    admin = AdminClient({"bootstrap.servers": secured.broker.address})
    place = (kind, f"{prefix}.{name}", ResourcePatternType.LITERAL, "User:copier", "*", operation, AclPermissionType.DENY)
    target = f"kafka://127.0.0.1:{secured.broker.second_port}/{prefix}?single-broker=true"
    rights = [
        AclBinding(each, prefix, ResourcePatternType.PREFIXED, "User:copier", "*", AclOperation.ALL, AclPermissionType.ALLOW)
        for each in (ResourceType.TOPIC, ResourceType.GROUP)
    ]
    secured.add("copier")
    for future in admin.create_acls([*rights, AclBinding(*place)]).values():
        future.result()

    begun = secured.run("copier", "copy", target, "--log", f"sqlite:{source}")
    looked = secured.run("copier", "nodes", "--log", target)
    for deleted in admin.delete_acls([AclBindingFilter(*place)]).values():
        deleted.result()
    until(lambda: secured.run("copier", "copy", target, "--log", f"sqlite:{source}").returncode == 0, PATIENCE_SECONDS, "it is copied")

    assert (begun.returncode, NOT_ALLOWED in begun.stderr) == (1, True), begun.stderr
    assert (looked.returncode, looked.stdout) == (6, ""), looked.stderr
    assert secured.run("copier", "nodes", "--log", target).returncode == 0


def test_doctor_says_which_of_its_checks_a_user_may_not_make_and_makes_the_others(secured: Secured) -> None:
    with secured.without("requester", ResourceType.GROUP, "", AclOperation.DESCRIBE):
        looked = secured.run("requester", "doctor", "--quick", "-o", "json")

    found = {item["check"]: (item["status"], NOT_ALLOWED in item["says"]) for item in json.loads(looked.stdout)["items"]}
    assert looked.returncode == 3, looked.stderr
    assert (found["cluster"], found["behind"]) == (("fail", True), ("fail", True))
    assert found["clock"][0] == found["dead letters"][0] == "ok"


def is_ready(process: Process) -> bool:
    """Whether it says so itself, at the port that it names."""
    served = re.search(r"metrics and health at (\S+)/metrics", process.said_since_start())
    if served is None:
        return False
    try:
        with urlopen(f"{served[1]}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_worker_that_loses_its_right_to_the_group_ends_and_says_so(secured: Secured) -> None:
    processor = secured.start("processor", "run", "--only", "processor", "--state", str(secured.folder / "robbed"), "--metrics", "0")
    until(lambda: is_ready(processor), PATIENCE_SECONDS, "it works")

    with secured.without("processor", ResourceType.GROUP, "stream-processor", AclOperation.READ):
        code = processor.ended(PATIENCE_SECONDS)

    said = processor.said()
    assert (code, NOT_ALLOWED in said) == (1, True), said
    assert "group fleet.stream-processor: " in said
    assert "mistake in claimlog" not in said


def test_an_operator_redrives_what_it_may_and_hears_of_each_letter_that_it_may_not(secured: Secured) -> None:
    garbage = {topic: b'{"garbage of": "%s"' % topic.encode() for topic in (NODE_RESOURCES, RESULTS, CLAIMS, REQUESTS)}
    with KafkaLog.open(parse_settings(f"kafka://{secured.broker.address}/{PREFIX}?single-broker=true", {})) as log:
        before = log.end(DEAD_LETTERS, 0)
        log.append([Message(topic, b"any", value, (), 0) for topic, value in garbage.items()])
        processor = secured.start("processor", "run", "--only", "processor", "--state", str(secured.folder / "state"))
        until(lambda: log.end(DEAD_LETTERS, 0) == before + len(garbage), PATIENCE_SECONDS, "each is a dead letter")
        assert processor.stop() == 0
        letters = {record.value: str(record.position) for record in log.read(DEAD_LETTERS, 0, before)}
        place = {topic: letters[value] for topic, value in garbage.items()}

        for _ in range(2):
            ends = {topic: log.end(topic, 0) for topic in garbage}
            redriven = secured.run("operator", "dead-letters", "redrive", "--all")
            lines = {f"{place[topic]} -> {topic}/0@{ends[topic]}" for topic in (CLAIMS, REQUESTS)}
            assert (redriven.returncode, set(redriven.stdout.splitlines())) == (1, lines), redriven.stderr
            assert [topic for topic in garbage if log.end(topic, 0) > ends[topic]] == [CLAIMS, REQUESTS]
            for topic in (NODE_RESOURCES, RESULTS):
                assert f"{place[topic]}: cannot be redriven: this user may not write {topic}\n" in redriven.stderr
            assert "FATAL" not in redriven.stderr
        end = log.end(RESULTS, 0)
        rest = secured.run("scheduler", "dead-letters", "redrive", "--all", "--topic", RESULTS)

        assert (rest.returncode, rest.stdout) == (0, f"{place[RESULTS]} -> {RESULTS}/0@{end}\n"), rest.stderr


def test_who_is_refused_after_its_secret_was_replaced_ends_at_once_and_says_what_to_do(secured: Secured) -> None:
    names, admin = ("processor", "scheduler"), AdminClient({"bootstrap.servers": secured.broker.address})
    kinds = {"processor": ("--state", str(secured.folder / "state")), "scheduler": ()}
    working = [secured.start(user, "run", "--only", user, *options, "--metrics", "0") for user, options in kinds.items()]
    until(lambda: all(map(is_ready, working)), PATIENCE_SECONDS, "both work")
    how = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    for future in admin.alter_user_scram_credentials([UserScramCredentialUpsertion(user, how, b"another") for user in names]).values():
        future.result()
    until(lambda: secured.run("scheduler", "topics", "check", password="another").returncode == 0, PATIENCE_SECONDS, "brokers know it")
    for user in names:
        (secured.folder / f"{user}.password").write_text("another\n")
    secured.broker.kill()
    secured.broker.again()

    codes = [process.ended(PATIENCE_SECONDS) for process in working]
    again = [secured.run(user, "topics", "check").returncode for user in names]

    for user, process in zip(names, working, strict=True):
        assert f"{secured.folder}/{user}.password has changed since this process began: start it again" in process.said()
    assert (codes, again) == ([5, 5], [0, 0])


def test_a_refusal_is_told_with_its_topic_also_by_the_append_that_only_follows_it(secured: Secured) -> None:
    def message(number: int) -> Message:
        return Message(RESULTS, b"k%d" % number, b'{"no": "record"}', (), 0)

    denied = secured.denied("scheduler", ResourceType.TOPIC, RESULTS, AclOperation.WRITE)
    with secured.opened("scheduler") as log, denied, pytest.raises(LogError, match=f"appending.* {PREFIX}.{RESULTS} .*{NOT_ALLOWED}"):
        for number in range(100):
            # Of the first one's refusal nobody has heard when the second begins.
            log.begin([message(number)])
            time.sleep(0.3)


def test_a_question_that_is_refused_names_the_topic(secured: Secured) -> None:
    denied = secured.denied("requester", ResourceType.TOPIC, CLAIMS, AclOperation.DESCRIBE)
    with secured.opened("requester") as log:
        log.end(CLAIMS, 0)
        with denied, pytest.raises(LogError, match=f"asking for offsets of {CLAIMS}: .*{NOT_ALLOWED}"):
            while True:
                log.end(CLAIMS, 0)
                time.sleep(0.01)
