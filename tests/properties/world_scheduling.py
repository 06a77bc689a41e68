"""The world's schedulers: DESIGN section 3 in small, with every fault that a scheduler can have. See `world`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator

from projections import fit
from projections.ledger import Ledger
from schemas.claims import ClaimItem, ClaimRequested
from schemas.ids import claim_id
from schemas.resources import Resources
from schemas.topics import CLAIMS
from tests.properties.world import GIVE_UP_S, NODES, PARTITION_OF, PARTITIONS, SKEW_S, TTL_S, Placed, Process, Request, Result, World

TRIES = 3
ALTERNATES = 1


class Scheduler:
    """One scheduler process: its own fold, the counting results it has read, and the partitions of requests it believes to own."""

    def __init__(self, world: World, name: str, owned: int) -> None:
        self.world, self.name, self.owned = world, name, owned
        self.epoch = world.new_id()
        self.owns = tuple(range(PARTITIONS)) if world.has("owners") else (owned,)
        self.ledgers = [Ledger(p, PARTITIONS) for p in range(PARTITIONS)]
        self.verdicts: dict[str, str] = {}
        self.results: dict[str, Result] = {}
        self._results_read = [0] * PARTITIONS
        self._first_request = list(world.committed) if world.has("trunc") else [0] * PARTITIONS
        self._cancelled: set[tuple[int, int]] = set()
        self._attempts: Counter[tuple[str, int]] = Counter()

    def run(self) -> Process:
        """Read, release what lost, serve requests and cancels, for ever; with `owners` it crashes now and then and another starts."""
        world = self.world
        while True:
            self.read()
            yield from self._release_losers()
            for partition in self.owns:
                log = world.request_log[partition]
                self._commit(partition)
                for offset in range(self._first_request[partition], len(log)):
                    word, request_id = log[offset]
                    if word == "cancel":
                        yield from self._cancel(partition, offset, world.requests[request_id])
                    elif self._unanswered(request_id):
                        yield from self._place(world.requests[request_id])
            if world.happens("owners", 0.01):
                world.go(Scheduler(world, self.name, self.owned).run(), world.random.randint(1, 10))
                return
            yield world.choice(1, 2)

    def read(self) -> None:
        """Fold `claims` and the results to their ends."""
        world = self.world
        for ledger in self.ledgers:
            for written in world.logs[CLAIMS, ledger.partition][ledger.next_offset :]:
                step = ledger.apply(written.offset, written.time_ms, written.key, written.value)
                for outcome in step.outcomes if step is not None else ():
                    if outcome.outcome in {"granted", "refused"}:
                        self.verdicts[outcome.claim_id] = outcome.node_id
            if ledger.next_offset == world.ledgers[ledger.partition].next_offset:
                assert ledger.digest == world.ledgers[ledger.partition].digest, f"{self.name} disagrees on partition {ledger.partition}"
        for partition in range(PARTITIONS):
            for result in world.result_log[partition][self._results_read[partition] :]:
                if result.request_id not in self.results and result.counts():
                    self.results[result.request_id] = result
            self._results_read[partition] = len(world.result_log[partition])

    def _unanswered(self, request_id: str) -> bool:
        self.read()
        return request_id not in self.results

    def _commit(self, partition: int) -> None:
        """Commit below the first request without a counting result; who starts later begins there."""
        log, world = self.world.request_log[partition], self.world
        while world.committed[partition] < len(log) and log[world.committed[partition]][1] in world.counting:
            world.committed[partition] += 1

    def _release_losers(self) -> Process:
        """Give back claims that their request's counting result does not name."""
        for ledger in self.ledgers:
            for claim in sorted(ledger.claims.values(), key=lambda claim: claim.claim_id):
                result = self.results.get(claim.request_id)
                if result is not None and self.world.requests[claim.request_id].partition in self.owns and not result.names(claim.claim_id):
                    yield from self.world.release(claim.claim_id, claim.node_id, "loser")

    def _cancel(self, partition: int, offset: int, request: Request) -> Process:
        """A cancel is the counting failure, or a release of what the placement named."""
        if (partition, offset) in self._cancelled:
            return
        if self._unanswered(request.request_id):
            yield from self.world.append_result(Result(request.request_id, ok=False))
            self.read()
        result = self.results.get(request.request_id)
        if result is not None:
            self._cancelled.add((partition, offset))
            for placed in result.placed:
                yield from self.world.release(placed.claim_id, placed.node_id, "cancelled")

    def _place(self, request: Request) -> Process:
        """Claim for each instance, then write the result: placed if all are held and it is in time, else failed."""
        world, taken_up_s = self.world, self.world.now_s
        placed: list[Placed] = []
        for index in range(len(request.instances)):
            one = yield from self._claim(request, index, taken_up_s)
            if one is None:
                break
            placed.append(one)
        gave_up = world.now_s - taken_up_s > GIVE_UP_S
        self.read()
        result = Result(request.request_id, ok=False)
        if gave_up:
            world.seen["requests given up"] += 1
        elif len(placed) == len(request.instances) and all(p.claim_id in self.ledgers[PARTITION_OF[p.node_id]].claims for p in placed):
            if world.happens("zcommit", 0.1):
                world.seen["frozen before the commit"] += 1
                yield 150
            yield world.choice(0, 1)
            result = Result(request.request_id, True, tuple(placed), taken_up_s, taken_up_s + GIVE_UP_S + SKEW_S)
        if not (yield from world.append_result(result)):
            yield from world.append_result(result)

    def _claim(self, request: Request, index: int, taken_up_s: int) -> Generator[int, None, Placed | None]:
        """Claim until one is granted; None after too many tries, too much time, or with no node left."""
        world = self.world
        for _ in range(TRIES):
            self.read()
            chosen = self._choose(request, index)
            if chosen is None:
                return None
            node_id = chosen.nodes[0]
            basis = self.ledgers[PARTITION_OF[node_id]].next_offset - 1
            record = ClaimRequested(request_id=request.request_id, owner=self.name, basis=basis, ttl_ms=TTL_S * 1000, items=(chosen,))
            if not (yield from world.append(record, node_id)):
                yield from world.append(record, node_id)
            yield world.choice(1, 1, 2)
            self.read()
            if granted := self.verdicts.get(chosen.claim_id):
                return Placed(chosen.claim_id, granted, chosen.instance_id, request.sizes[index])
            if world.now_s - taken_up_s > GIVE_UP_S:
                return None
        return None

    def _choose(self, request: Request, index: int) -> ClaimItem | None:
        """A claim on a random node where it fits, with an alternate of the same partition."""
        self._attempts[request.request_id, index] += 1
        attempt = self._attempts[request.request_id, index]

        def item(*nodes: str) -> ClaimItem:
            return ClaimItem(
                claim_id=claim_id(request.request_id, index, self.name, self.epoch, attempt),
                instance_id=request.instances[index],
                nodes=nodes,
                resources=Resources(memory_mib=request.sizes[index]),
                resize=request.kind == "resize",
            )

        allowed = [request.only] if request.only else [node_id for node_id in NODES if node_id != request.source]
        fitting = [n for n in allowed if not fit.fits(self.ledgers[PARTITION_OF[n]].nodes.get(n), item(n), request.request_id)]
        if not fitting:
            return None
        first = self.world.random.choice(fitting)
        others = [n for n in fitting if n != first and PARTITION_OF[n] == PARTITION_OF[first]]
        return item(first, *others[:ALTERNATES])


def populate(world: World) -> None:
    """Two schedulers, each with a partition of the requests."""
    for owned in range(PARTITIONS):
        world.go(Scheduler(world, f"s{owned}", owned).run())
