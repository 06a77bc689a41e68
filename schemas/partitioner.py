"""Which partition a key belongs to: murmur2 exactly as Kafka's Java client has it, so that every client puts a key in the same place.

An empty key is a key like any other. librdkafka's own default is CRC32: its producers need `partitioner=murmur2`.
The ledger's fold asks it too (rule 11: key and partition that belong together), which is why it stands here.
"""

from functools import lru_cache
from struct import unpack_from

# The three constants of Kafka's DefaultPartitioner (Utils.murmur2); changing one moves every key.
_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_SHIFT = 24
_MASK_32 = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Kafka's 32-bit murmur2 of `key`, as an unsigned number."""
    length = len(key)
    words, rest = divmod(length, 4)
    state = _SEED ^ length
    for word in unpack_from(f"<{words}I", key):
        mixed = (word * _MULTIPLIER) & _MASK_32
        mixed = ((mixed ^ (mixed >> _SHIFT)) * _MULTIPLIER) & _MASK_32
        state = ((state * _MULTIPLIER) & _MASK_32) ^ mixed
    if rest:
        state = ((state ^ int.from_bytes(key[-rest:], "little")) * _MULTIPLIER) & _MASK_32
    state = ((state ^ (state >> 13)) * _MULTIPLIER) & _MASK_32
    return state ^ (state >> 15)


# Node names repeat in every audit and claim; 65,536 of them take about 10 MB.
@lru_cache(maxsize=1 << 16)
def partition_of(key: bytes, partitions: int) -> int:
    """The partition of `key` among `partitions`: the sign bit is dropped, not negated, as Kafka's `toPositive` does."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions if partitions > 1 else 0
