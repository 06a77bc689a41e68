"""A real libvirtd with real QEMU guests for tests: one of our own in a folder of its own, as an unprivileged user's session.

It touches nothing of a libvirt that is installed and in use, needs no service manager, and several run beside each other. Guests are
QEMU's emulation (`type='qemu'`), 64 MiB, without an operating system, started paused: they cost some 40 MiB and no CPU.
Whatever becomes of the tests, a reaper ends daemon and guests when the process that started them has ended.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import libvirt
import pytest

from tests.kafka_broker import free_ports

NEEDED = ("libvirtd", "qemu-system-x86_64", "qemu-img", "openssl")
NOBODY = 65534
START_SECONDS = 60.0
GUEST = """<domain type='qemu'><name>{name}</name><uuid>{uuid}</uuid><memory unit='MiB'>{memory_mib}</memory><vcpu>{vcpus}</vcpu>
<os><type arch='x86_64' machine='pc'>hvm</type></os><on_poweroff>destroy</on_poweroff>
<devices>{devices}<memballoon model='none'/></devices></domain>"""
NODE = """<node><cpu><mhz>2600</mhz><model>x86_64</model><active>8</active><nodes>1</nodes><sockets>1</sockets><cores>8</cores>
<threads>1</threads></cpu><memory>16777216</memory>{domains}</node>"""
NODE_DOMAIN = """<domain type='test'><name>vm-{number}</name><uuid>{uuid}</uuid><memory unit='MiB'>512</memory>
<vcpu>1</vcpu><os><type arch='x86_64'>hvm</type></os></domain>"""
DISK = (
    "<disk type='file' device='disk'><driver name='qemu' type='{kind}'/><source file='{path}'/><target dev='{target}' bus='virtio'/></disk>"
)
CONFIG = """listen_tls = 1
tls_port = "{tls_port}"
auth_tls = "none"
key_file = "{folder}/pki/serverkey.pem"
cert_file = "{folder}/pki/servercert.pem"
ca_file = "{folder}/pki/cacert.pem"
listen_tcp = 1
listen_addr = "127.0.0.1"
tcp_port = "{port}"
auth_tcp = "none"
auth_unix_rw = "none"
auth_unix_ro = "none"
host_uuid = "{host_uuid}"
log_outputs = "3:file:{folder}/libvirtd.log"
"""
# Waits on its standard input, which ends with the process that holds it; then ends the guests and the daemon by their own pid files.
REAPER = """read -r _
for file in {folder}/libvirtd.pid {folder}/run/libvirt/qemu/run/*.pid; do
    [ -s "$file" ] && kill -9 "$(cat "$file")" 2>/dev/null
done
sleep 0.2
rm -rf {folder}"""


def missing() -> list[str]:
    """The programs that are not here: the packages are in .ci/run."""
    return [name for name in NEEDED if shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin") is None]


def certificates(folder: Path) -> None:
    """An authority, and a server and a client that it vouches for, under the names that libvirt looks for."""
    new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]

    def made(command: list[str], name: str, *extensions: str) -> None:
        added = [part for extension in extensions for part in ("-addext", extension)]
        files = ["-keyout", f"{folder}/{name}key.pem", "-out", f"{folder}/{name}cert.pem"]
        subprocess.run([*command, "-x509", "-subj", f"/CN={name}", *files, *added], check=True, capture_output=True)

    made(new, "ca", "keyUsage=critical,keyCertSign")
    signed = [*new, "-CA", f"{folder}/cacert.pem", "-CAkey", f"{folder}/cakey.pem"]
    leaf = ("basicConstraints=critical,CA:FALSE", "keyUsage=critical,digitalSignature,keyEncipherment")
    made(signed, "server", *leaf, "extendedKeyUsage=serverAuth", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    made(signed, "client", *leaf, "extendedKeyUsage=clientAuth")


def domain_id(number: int) -> str:
    """The uuid of a domain of `node_xml`."""
    return f"{number:08d}-0000-4000-8000-000000000001"


def node_xml(numbers: Iterable[int]) -> str:
    """A node file of libvirt's test driver, with domains of these numbers."""
    return NODE.format(domains="".join(NODE_DOMAIN.format(number=number, uuid=domain_id(number)) for number in numbers))


def uuid_of(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


def guest_xml(name: str, *, vcpus: int = 1, memory_mib: int = 64, devices: str = "") -> str:
    return GUEST.format(name=name, uuid=uuid_of(name), vcpus=vcpus, memory_mib=memory_mib, devices=devices)


def until(holds: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What `holds` gives as soon as it is true; waits for no longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.02)
    return found


class Daemon:
    """One libvirtd and its guests. Made by `running`."""

    def __init__(self, folder: Path, port: int, tls_port: int) -> None:
        self.folder, self.port, self.tls_port = folder, port, tls_port
        self.socket = folder / "run" / "libvirt" / "libvirt-sock"
        self.process: subprocess.Popen[bytes] | None = None
        for name in ("run", "config/libvirt", "cache", "home", "images", "pki"):
            (folder / name).mkdir(parents=True)
        certificates(folder / "pki")
        (folder / "config" / "libvirt" / "qemu.conf").write_text('stdio_handler = "file"\n')  # no virtlogd
        (folder / "libvirtd.conf").write_text(CONFIG.format(port=port, tls_port=tls_port, folder=folder, host_uuid=uuid.uuid4()))
        if os.getuid() == 0:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, NOBODY, NOBODY)

    @property
    def uri(self) -> str:
        return f"qemu+unix:///session?socket={self.socket}"

    @property
    def tcp_uri(self) -> str:
        return f"qemu+tcp://127.0.0.1:{self.port}/session"

    @property
    def tls_uri(self) -> str:
        return f"qemu+tls://127.0.0.1:{self.tls_port}/session?pkipath={self.folder}/pki"

    def test_uri(self, path: str = "/default") -> str:
        """The test driver behind this daemon: a remote host that runs nothing."""
        return f"test+unix://{path}?socket={self.socket}"

    def start(self) -> None:
        names = {"XDG_RUNTIME_DIR": "run", "XDG_CONFIG_HOME": "config", "XDG_CACHE_HOME": "cache", "HOME": "home"}
        path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
        environment = {"PATH": path} | {name: str(self.folder / value) for name, value in names.items()}
        command = ["libvirtd", "--config", f"{self.folder}/libvirtd.conf", "--pid-file", f"{self.folder}/libvirtd.pid", "--listen"]
        if os.getuid() == 0:
            command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *command]
        with (self.folder / "libvirtd.out").open("ab") as out:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        until(self._answers, START_SECONDS)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "libvirtd.out").read_text() + (self.folder / "libvirtd.log").read_text()
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(self.socket))
            libvirt.open(self.uri).close()
        except (OSError, libvirt.libvirtError):
            return False
        return True

    def kill(self) -> None:
        """kill -9 of libvirtd alone: its guests go on."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Within, libvirtd is stopped (SIGSTOP): its connections are there, and nobody answers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def pid_of(self, name: str) -> int:
        """The process of a running guest."""
        return int((self.folder / "run" / "libvirt" / "qemu" / "run" / f"{name}.pid").read_text())

    @contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """Within, the guest's QEMU is stopped: libvirtd answers, it does not."""
        pid = self.pid_of(name)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def clear(self, handle: Any) -> None:
        """End and forget every guest, so that the next test finds none: libvirt's own way takes two seconds each."""
        for domain in handle.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
            with suppress(ProcessLookupError, FileNotFoundError):  # it has ended by itself, or is just ending
                os.kill(self.pid_of(domain.name()), signal.SIGKILL)
        until(lambda: not handle.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE))
        for domain in handle.listAllDomains(0):
            domain.undefine()

    def image(self, name: str, kind: str, size: str) -> str:
        """A disk image that a guest may use; its path."""
        path = self.folder / "images" / name
        subprocess.run(["qemu-img", "create", "-q", "-f", kind, str(path), size], check=True)
        if os.getuid() == 0:
            os.chown(path, NOBODY, NOBODY)
        return str(path)


@contextmanager
def running() -> Iterator[Daemon]:
    """A libvirtd of one's own; skips, which fails on CI, where the programs are not installed."""
    if lacking := missing():
        pytest.skip(f"{', '.join(lacking)} not installed; .ci/run names the packages")
    folder = Path(tempfile.mkdtemp(prefix="claimlog-libvirt-", dir="/tmp"))  # short: a socket's path has 108 characters
    port, tls_port = free_ports(2)
    daemon = Daemon(folder, port, tls_port)
    script = REAPER.format(folder=shlex.quote(str(folder)))
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, start_new_session=True):
        try:
            daemon.start()
            yield daemon
        finally:
            if daemon.process is not None and daemon.process.poll() is None:
                daemon.process.send_signal(signal.SIGCONT)
                daemon.process.terminate()
                try:
                    daemon.process.wait(10)
                except subprocess.TimeoutExpired:
                    daemon.kill()
