"""A worker joins the others over TLS as it reaches the log: by the same settings, wherever they stand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.harness import CLAIMLOG, ROOT
from tests.integration.test_kafka_security import LISTENER, certificate
from tests.kafka_broker import Broker, started

PATIENCE_SECONDS = 120.0
# The broker asks who comes by certificate, and by password then.
ASKS = """
listener.name.sasl_ssl.ssl.client.auth=required
listener.name.sasl_ssl.ssl.truststore.type=PEM
listener.name.sasl_ssl.ssl.truststore.location={folder}/client.pem
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: apt install openssl")
    found = tmp_path_factory.mktemp("tls")
    for name in ("broker", "client"):
        certificate(found, name)
    (found / "keystore.pem").write_text((found / "broker.key").read_text() + (found / "broker.pem").read_text())
    (found / "authorities").mkdir()
    shutil.copy(found / "broker.pem", found / "authorities")
    subprocess.run(["openssl", "rehash", str(found / "authorities")], check=True)
    return found


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[Broker]:
    modules = {kind: f"org.apache.kafka.common.security.{kind}.{kind.title()}LoginModule" for kind in ("plain", "scram")}
    settings = LISTENER.format(keystore=folder / "keystore.pem", **modules) + ASKS.format(folder=folder)
    with started(Broker(folder / "kafka", settings)) as found:
        made = claimlog(found, folder, "topics", "apply", "--ledger-partitions", "2", "--request-partitions", "2")
        assert made.returncode == 0, made.stderr
        yield found


def claimlog(broker: Broker, folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A verb, to its end, with all it is told in the environment and texts in files, as secrets are mounted."""
    given = {
        "SECURITY_PROTOCOL": "SASL_SSL",
        "SASL_MECHANISM": "PLAIN",
        "SASL_USERNAME": "plain",
        "SASL_PASSWORD": "plain-secret",
        "SSL_CERTIFICATE_PEM_FILE": str(folder / "client.pem"),
        "SSL_KEY_PEM_FILE": str(folder / "client.key"),
        **(settings or {"SSL_CA_PEM_FILE": str(folder / "broker.pem")}),
    }
    environ = os.environ | {f"CLAIMLOG_KAFKA_{name}": value for name, value in given.items()}
    environ["CLAIMLOG_LOG"] = f"kafka://127.0.0.1:{broker.second_port}/fleet?single-broker=true"
    return subprocess.run([*CLAIMLOG, *arguments], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=PATIENCE_SECONDS)


def worked(broker: Broker, folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A worker's whole life: until nothing is left to do."""
    return claimlog(broker, folder, "run", "--only", "processor", "--state", str(folder / "state"), "--until-idle", *arguments, **settings)


def test_a_worker_takes_whom_it_trusts_and_what_it_shows_from_texts_in_files(broker: Broker, folder: Path) -> None:
    assert claimlog(broker, folder, "produce", "load", "--nodes", "4", "--once").returncode == 0

    done = worked(broker, folder)

    assert done.returncode == 0, done.stderr
    assert "partitions 0, 1" in done.stderr
    shown = claimlog(broker, folder, "nodes", "-o", "value", "-c", "node_id")
    assert len(shown.stdout.splitlines()) == 4, shown.stderr


def test_a_folder_of_authorities_is_as_good_as_a_file_and_one_may_go_without(broker: Broker, folder: Path) -> None:
    by_folder = worked(broker, folder, SSL_CA_LOCATION=str(folder / "authorities"))
    unchecked = worked(broker, folder, ENABLE_SSL_CERTIFICATE_VERIFICATION="False")

    assert (by_folder.returncode, unchecked.returncode) == (0, 0), (by_folder.stderr, unchecked.stderr)


def test_what_a_worker_cannot_do_ends_it_at_its_start_with_what_it_can(broker: Broker, folder: Path) -> None:
    refused = worked(broker, folder, "-X", "ssl.curves.list=P-256")

    assert refused.returncode == 2
    assert "ssl.curves.list: the connection by which the stream processor's workers join each other cannot do that; use" in refused.stderr


def test_a_worker_tries_addresses_of_the_family_that_was_said_only(broker: Broker, tmp_path: Path) -> None:
    # By itself: the engines' connections would end a whole worker before its own is tried.
    host = f"""
import sys, time
from pathlib import Path
from streams.app import FaustHost
from streams.log.kafka_settings import KafkaSettings
from streams.metrics import Health

settings = KafkaSettings(bootstrap="localhost:{broker.port}", prefix="fleet", options={{"broker.address.family": sys.argv[1]}})
FaustHost(settings, Path({str(tmp_path)!r}), sys.argv[1], 2, lambda _: [], Health(time.monotonic), sys.stderr, until_idle=True).run()
"""

    ends = [
        subprocess.run([sys.executable, "-c", host, family], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        for family in ("v4", "v6")
    ]

    assert [ended.returncode for ended in ends] == [0, 1], [ended.stderr for ended in ends]
    assert "joining the other workers" in ends[1].stderr
