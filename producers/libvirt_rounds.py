"""Rounds of the slow question: every guest's disks, guest by guest, beside the audits and never in their way.

A guest that does not answer is passed by: its call is left to its worker, the round goes on behind it, and it is unknown since it last
answered, until the call returns. So one frozen guest costs one thread and no audit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

import libvirt
from msgspec import Struct

from producers.libvirt_connect import Connection, HypervisorUnreachable, Pending, said
from producers.libvirt_disks import DiskLook, DiskSize, Guest
from producers.libvirt_pools import PoolRefresh
from producers.libvirt_system import Options

STUCK_MAX = 3
"""Guests whose answers are waited for at once: each costs a connection and a thread, and one of the 20 that libvirtd serves all with."""
ANSWER_MS = 5_000
"""A guest answers in some milliseconds; one under heavy load may take a second."""


class Stuck(Struct):
    """A guest that has not answered: our call waits for it (`pending`, of `look`), or somebody else's command occupies it (`is_occupied`).

    With neither it is asked again: the call ended without an answer, the connection was lost, or others hang and it was passed over.
    """

    since_ms: int
    pending: Pending[None] | None = None
    look: DiskLook | None = None
    is_occupied: bool = False

    @property
    def is_waited_for(self) -> bool:
        """Whether there is something that may end by itself."""
        return self.pending is not None or self.is_occupied


class Rounds:
    """The rounds of one hypervisor, each over a connection of its own. `wall_ms` stamps, `mono_ms` measures."""

    def __init__(self, options: Options, wall_ms: Callable[[], int], mono_ms: Callable[[], int]) -> None:
        self.stuck: dict[str, Stuck] = {}
        self.moved: set[str] = set()
        """Guests whose disks are elsewhere than their XML said, as the rounds found since somebody took it from here."""
        self.pools = PoolRefresh(options.pools)
        self._options = options
        self._wall_ms, self._mono_ms = wall_ms, mono_ms
        self._open: Callable[[], Connection] | None = None
        self._connection: Connection | None = None
        self._look: DiskLook | None = None
        self._pending: Pending[None] | None = None
        self._answered_ms: dict[str, int] = {}
        self._sizes: dict[str, DiskSize] = {}
        self._refreshing: Pending[str] | None = None
        self._pools_trouble = ""
        self._refresh_due_ms = 0
        self._guests: list[Guest] = []

    @property
    def running(self) -> bool:
        """Whether a round is under way."""
        return self._look is not None or self._refresh_due_ms > 0

    @property
    def pools_trouble(self) -> str:
        """Why storage pools could not be looked at again, so that their figures are old or unknown."""
        return "; ".join(filter(None, (self._pools_trouble, *(pool.why for pool in list(self.pools.stopped.values())))))

    def start(self, open_connection: Callable[[], Connection], guests: Iterable[Guest]) -> None:
        """Begin a round, unless one is under way; without a connection there is none until the next is due."""
        if self.running:
            return
        self._open, self._sizes = open_connection, {}
        waited_for = {instance_id for instance_id, stuck in self.stuck.items() if stuck.is_waited_for}
        self._guests = [guest for guest in guests if guest.instance_id not in waited_for]
        # A pool on a dead server hangs when it is looked at; then the round goes on without, and so do the next until it returns.
        if self._options.refresh_pools and (self._refreshing is None or self._refreshing.done) and self._connect():
            assert self._connection is not None
            self._refreshing = self._connection.start(self.pools.run)
            self._refresh_due_ms = self._mono_ms() + ANSWER_MS
        else:
            self._go_on(self._guests)

    def wait(self, timeout_seconds: float) -> None:
        """Wait until the round is over, or one guest has kept it waiting, or the time is up."""
        if self._refresh_due_ms and self._refreshing is not None:
            self._refreshing.wait(min(timeout_seconds, ANSWER_MS / 1000))
        elif self._pending is not None:
            self._pending.wait(min(timeout_seconds, ANSWER_MS / 1000))

    def tend(self) -> dict[str, DiskSize] | None:
        """See how the round goes, without waiting: past a guest that hangs, and what it found when it is over, else None."""
        self._release()
        if self._refresh_due_ms and self._refreshing is not None and (self._refreshing.done or self._mono_ms() > self._refresh_due_ms):
            self._refresh_due_ms = 0
            self._pools_trouble = _trouble(self._refreshing)
            self._go_on(self._guests)
        if self._look is None or self._pending is None:
            return None
        look, pending = self._look, self._pending
        if pending.done:
            self._take(look)
            self._end()
            return self._sizes
        at = look.at
        if at is not None and self._mono_ms() - at[1] > ANSWER_MS:
            instance_id, began_ms = at
            self._take(look)
            began_wall_ms = self._wall_ms() - (self._mono_ms() - began_ms)
            since_ms = self.stuck[instance_id].since_ms if instance_id in self.stuck else self._answered_ms.get(instance_id, began_wall_ms)
            self.stuck[instance_id] = Stuck(since_ms, pending, look)
            look.given_up = True
            self._end()
            self._go_on(look.left())
            return None if self.running else self._sizes
        return None

    def abandon(self) -> None:
        """The host is left: no round, and nothing waits for an answer. Who was stuck is so until a new connection tells."""
        self._end()
        self._refreshing, self._refresh_due_ms = None, 0
        for stuck in self.stuck.values():
            stuck.pending = None

    def forget(self, present: Iterable[str], active: AbstractSet[str]) -> None:
        """Only `present` guests are there, and `active` ones have a QEMU that may be asked."""
        here = set(present)
        self.stuck = {i: stuck for i, stuck in self.stuck.items() if i in here and (i in active or stuck.is_waited_for)}
        self._answered_ms = {instance_id: ms for instance_id, ms in self._answered_ms.items() if instance_id in here}

    @property
    def _has_room(self) -> bool:
        """Whether another guest may be asked that may hang."""
        return sum(stuck.pending is not None for stuck in self.stuck.values()) < STUCK_MAX

    def _connect(self) -> bool:
        """Whether there is a connection for the round that nothing hangs on; a new one if it must be, and not too many hang already."""
        if self._connection is not None and self._connection.busy:
            self._end()
        if self._connection is None and self._open is not None and self._has_room:
            try:
                self._connection = self._open()
            except HypervisorUnreachable:
                return False  # the audits find the same, and say it
        return self._connection is not None

    def _end(self) -> None:
        self._look = self._pending = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _go_on(self, guests: list[Guest]) -> None:
        """Ask these guests; who cannot be asked now stays as last known until there is room, or until the next round."""
        if not self._connect() or self._connection is None:
            if not self._has_room:
                self._pass_over(guests)
            return
        look = DiskLook(guests, self._mono_ms)
        try:
            self._pending, self._look = self._connection.start(look.run), look
        except HypervisorUnreachable:
            self._end()

    def _pass_over(self, guests: Iterable[Guest]) -> None:
        now_ms = self._wall_ms()
        for guest in guests:
            if guest.is_active:
                since_ms = self._answered_ms.get(guest.instance_id, now_ms)
                self.stuck.setdefault(guest.instance_id, Stuck(since_ms))

    def _take(self, look: DiskLook) -> None:
        now_ms = self._wall_ms()
        self._sizes |= look.sizes
        self.moved.update(list(look.moved))
        for instance_id in list(look.answered):
            self._answered_ms[instance_id] = now_ms
            self.stuck.pop(instance_id, None)
        for instance_id, busy_ms in dict(look.occupied).items():
            self.stuck.setdefault(instance_id, Stuck(now_ms - busy_ms)).is_occupied = True

    def _release(self) -> None:
        """A call that returned is a guest that answers again, unless it only was given up, or the connection has ended."""
        for instance_id, stuck in list(self.stuck.items()):
            if stuck.pending is None or not stuck.pending.done:
                continue
            if stuck.look is not None and instance_id in stuck.look.answered:
                del self.stuck[instance_id]
                self._answered_ms[instance_id] = self._wall_ms()
            else:
                stuck.pending = stuck.look = None


def _trouble(refreshing: Pending[str]) -> str:
    if not refreshing.done:
        return f"no answer in {ANSWER_MS // 1000} s"
    try:
        return refreshing.answer(0)
    except libvirt.libvirtError as error:
        return said(error)
