"""Ids of tensors as MindSpore writes them: ``std::hash<std::string>`` of the producer's full name (libstdc++)."""

from __future__ import annotations

MULTIPLIER = 0xC6A4A7935BD1E995
SEED = 0xC70F6907
MASK = 2**64 - 1


def std_hash(text: str) -> int:
    """libstdc++'s string hash on a 64-bit little-endian machine (MurmurHash64A with a fixed seed)."""
    data = text.encode()
    value = SEED ^ (len(data) * MULTIPLIER & MASK)
    whole = len(data) // 8 * 8
    for start in range(0, whole, 8):
        word = int.from_bytes(data[start : start + 8], "little")
        value = (value ^ (_mix(word * MULTIPLIER & MASK) * MULTIPLIER & MASK)) * MULTIPLIER & MASK
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * MULTIPLIER & MASK
    return _mix(_mix(value) * MULTIPLIER & MASK)


def _mix(value: int) -> int:
    return value ^ (value >> 47)
