"""What all tests share: one printed seed a run, Hypothesis profiles, and no silent skip on CI."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from tests.libvirt_daemon import Daemon

ON_CI = os.environ.get("CI") == "true"
SEED = 20_261_121
"""Of a run that is given none: what passed yesterday and fails today was broken in between. `make soak` and `SEED=random` look for what
no seed has found yet."""

LANES = (
    ("test_kafka_azure", "test_azure", "test_garbage", "test_kafka_poison", "test_demands", "test_kill"),
    ("test_kafka_brokers", "test_kafka_network", "test_kafka_membership", "test_kafka_rewound", "test_kafka_zombies", "test_kafka_unclean"),
)
"""Files of tests that put many processes under load, which take several times as long, and as much of the processors again, where three of
them meet. Each lane is run by one worker, from the beginning on, while the others have the many small ones."""

# No deadline: the machine is shared, and a slow example is not a wrong one.
settings.register_profile("default", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), max_examples=100, print_blob=True)
settings.load_profile("ci" if ON_CI else "default")


def _heed_signals() -> None:
    """Undo that a shell ignores SIGINT for what it starts in the background, and `nohup` SIGHUP: what a test starts inherits it."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose this run's seed before Hypothesis and the xdist workers ask for it; hear the signals that the tests send."""
    _heed_signals()
    given = config.getoption("--hypothesis-seed")
    if given == "random" or (given is None and os.environ.get("CLAIMLOG_SOAK")):
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(1 << 32))
    elif given is None:
        config.option.hypothesis_seed = str(SEED)


def _lane(nodeid: str) -> int:
    """The place of a test's lane; behind all of them for one in none."""
    name = nodeid.partition("::")[0].rpartition("/")[2].removesuffix(".py")
    return next((place for place, files in enumerate(LANES) if name in files), len(LANES))


class _InLanes(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """A file's tests go to one worker, and so do those of a lane."""

    def _split_scope(self, nodeid: str) -> str:
        place = _lane(nodeid)
        return f"lane {place}" if place < len(LANES) else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """Who runs which test, where several workers do."""
    return _InLanes(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lanes first: nothing is left to be done beside the last of them otherwise."""
    items.sort(key=lambda item: _lane(item.nodeid))


def pytest_report_header(config: pytest.Config) -> str:
    """The line that makes a failure repeatable."""
    seed = config.getoption("--hypothesis-seed")
    return f"seed {seed}, {settings.get_current_profile_name()} profile (the same run again: make test SEED={seed})"


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """This run's seed, for tests that draw their own numbers."""
    return int(request.config.getoption("--hypothesis-seed"))


@pytest.fixture(scope="module")
def libvirt_events() -> Generator[None]:
    """libvirt's event loop, for tests that connect to it."""
    from producers.libvirt_connect import EventLoop  # it may not be installed

    loop = EventLoop()
    yield
    loop.stop()


@pytest.fixture(scope="module")
def daemon(libvirt_events: None) -> Generator[Daemon]:
    """A libvirtd that a module of tests has for itself."""
    from tests.libvirt_daemon import running  # the same

    with running() as daemon:
        yield daemon


def _skip_fails(report: pytest.TestReport | pytest.CollectReport, *, excused: bool) -> None:
    if ON_CI and report.skipped and not excused and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"CI=true: nothing may be skipped but tests marked needs_docker. {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """On CI a skipped test has failed: its environment is incomplete."""
    report = yield
    _skip_fails(report, excused=item.get_closest_marker("needs_docker") is not None)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that skips itself while it is collected."""
    report = yield
    _skip_fails(report, excused=False)
    return report
