"""docs/programs.md: the program that is shown there, run as it is on a broker, asks for a placement and has its answer."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

from schemas.claims import NodeObserved
from schemas.codec import encode, key_of
from schemas.inventory import Hypervisor
from schemas.topics import CLAIMS, REQUESTS
from streams.cli.reading.open_log import open_log
from streams.ledger_topics import open_ledger
from streams.log.base import Message
from tests.faults.harness import CLAIMLOG, ROOT, until
from tests.kafka_broker import bootstrap

(PROGRAM,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "programs.md").read_text(encoding="utf-8"), re.DOTALL)
HOST = Hypervisor(vcpus=8, memory_mib=8192, disk_mib=100_000)
OBSERVED = NodeObserved(node_id="n1", producer="a", epoch=1, counter=1, taken_at_ms=1, mono_ms=1, digest="d", hypervisor=HOST, instances=())


def test_the_program_that_is_shown_asks_and_is_answered(tmp_path: Path) -> None:
    broker, prefix = bootstrap(), f"shop-{uuid4().hex[:10]}"
    spec = f"kafka://{broker}/{prefix}?single-broker=true"
    with open_log(spec, {}, io.BytesIO(), create=True) as log:
        open_ledger(log)
        log.append([Message(CLAIMS, key_of(OBSERVED) or b"", encode(OBSERVED), (), None)])
        asks = subprocess.Popen([sys.executable, "-c", PROGRAM, broker, prefix], stdout=subprocess.PIPE, text=True)
        try:
            until(lambda: any(log.ends(REQUESTS).values()), 30.0, "it has asked")
            scheduler = [*CLAIMLOG, "run", "--log", spec, "--only", "scheduler", "--until-idle"]
            subprocess.run(scheduler, cwd=tmp_path, check=True, timeout=90)
            said, _ = asks.communicate(timeout=30)
        finally:
            asks.kill()

    (place,) = json.loads(said)
    assert (place["node_id"], place["resources"]["memory_mib"]) == ("n1", 4096)
