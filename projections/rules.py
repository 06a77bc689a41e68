"""The constants of rules version 1. They decide outcomes, so a change of any of them is a new rules version."""

RULES_VERSION = 1
RULES_KNOWN = frozenset({1})

# Clocks of hosts kept by NTP differ by milliseconds; five seconds also cover a step and the time an event waits for its stamp.
SKEW_MS = 5_000
# A reboot undefines and defines again, or stops and starts, within seconds; Nova itself holds a stop back for 15 s for the same reason.
GRACE_MS = 15_000
# Ids are remembered this many records after they closed: minutes at the highest rate of one partition, far beyond any client's retry.
REMEMBERED_RECORDS = 100_000
# Digests are published at multiples of this offset: often enough to find a wrong process soon, rare enough to cost nothing.
DIGEST_EVERY = 10_000
