"""XXH3-64 with seed 0 and the default secret, written from the xxHash specification 0.2.0.

Plain and slow on purpose: a second opinion on the library that kvlane itself uses.
SPDX-License-Identifier: Apache-2.0
"""

import struct

PRIME32_1 = 0x9E3779B1
PRIME32_2 = 0x85EBCA77
PRIME32_3 = 0xC2B2AE3D
PRIME64_1 = 0x9E3779B185EBCA87
PRIME64_2 = 0xC2B2AE3D27D4EB4F
PRIME64_3 = 0x165667B19E3779F9
PRIME64_4 = 0x85EBCA77C2B2AE63
PRIME64_5 = 0x27D4EB2F165667C5
PRIME_MX1 = 0x165667919E3779F9
PRIME_MX2 = 0x9FB21C651E98DF25

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)

MASK32 = (1 << 32) - 1
MASK64 = (1 << 64) - 1

STRIPE_BYTES = 64
STRIPES_PER_BLOCK = (len(SECRET) - STRIPE_BYTES) // 8
BLOCK_BYTES = STRIPE_BYTES * STRIPES_PER_BLOCK


def _word32(data, at):
    return int.from_bytes(data[at : at + 4], "little")


def _word64(data, at):
    return int.from_bytes(data[at : at + 8], "little")


def _folded_product(a, b):
    """The two halves of the 128-bit product of two 64-bit numbers, one xor the other."""
    product = (a & MASK64) * (b & MASK64)
    return (product & MASK64) ^ (product >> 64)


def _rotated(x, bits):
    return (x << bits | x >> (64 - bits)) & MASK64


def _avalanche(x):
    x ^= x >> 37
    x = x * PRIME_MX1 & MASK64
    return x ^ x >> 32


def _avalanche_xxh64(x):
    x ^= x >> 33
    x = x * PRIME64_2 & MASK64
    x ^= x >> 29
    x = x * PRIME64_3 & MASK64
    return x ^ x >> 32


def _hash_1_to_3(data):
    n = len(data)
    combined = data[n - 1] | n << 8 | data[0] << 16 | data[n >> 1] << 24
    return _avalanche_xxh64(_word32(SECRET, 0) ^ _word32(SECRET, 4) ^ combined)


def _hash_4_to_8(data):
    n = len(data)
    combined = _word32(data, n - 4) | _word32(data, 0) << 32
    x = _word64(SECRET, 8) ^ _word64(SECRET, 16) ^ combined
    x ^= _rotated(x, 49) ^ _rotated(x, 24)
    x = x * PRIME_MX2 & MASK64
    x ^= (x >> 35) + n
    x = x * PRIME_MX2 & MASK64
    return x ^ x >> 28


def _hash_9_to_16(data):
    n = len(data)
    low = _word64(SECRET, 24) ^ _word64(SECRET, 32) ^ _word64(data, 0)
    high = _word64(SECRET, 40) ^ _word64(SECRET, 48) ^ _word64(data, n - 8)
    swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
    return _avalanche(n + swapped + high + _folded_product(low, high) & MASK64)


def _mix_step(data, at, secret_at):
    return _folded_product(
        _word64(data, at) ^ _word64(SECRET, secret_at),
        _word64(data, at + 8) ^ _word64(SECRET, secret_at + 8),
    )


def _hash_17_to_128(data):
    n = len(data)
    acc = n * PRIME64_1
    for i in reversed(range((n - 1 >> 5) + 1)):
        acc += _mix_step(data, i * 16, i * 32)
        acc += _mix_step(data, n - i * 16 - 16, i * 32 + 16)
    return _avalanche(acc & MASK64)


def _hash_129_to_240(data):
    n = len(data)
    acc = n * PRIME64_1
    for i in range(8):
        acc += _mix_step(data, i * 16, i * 16)
    acc = _avalanche(acc & MASK64)
    for i in range(8, n >> 4):
        acc += _mix_step(data, i * 16, (i - 8) * 16 + 3)
    acc += _mix_step(data, n - 16, 119)
    return _avalanche(acc & MASK64)


def _accumulate(acc, data, at, secret_at):
    stripe = struct.unpack_from("<8Q", data, at)
    secret = struct.unpack_from("<8Q", SECRET, secret_at)
    for i in range(8):
        value = stripe[i] ^ secret[i]
        acc[i ^ 1] = acc[i ^ 1] + stripe[i] & MASK64
        acc[i] = acc[i] + (value & MASK32) * (value >> 32) & MASK64


def _scramble(acc):
    secret = struct.unpack_from("<8Q", SECRET, len(SECRET) - STRIPE_BYTES)
    for i in range(8):
        x = acc[i] ^ acc[i] >> 47
        acc[i] = (x ^ secret[i]) * PRIME32_1 & MASK64


def _hash_long(data):
    n = len(data)
    acc = [PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1]
    # The last block waits for the last round even when it is full.
    blocks = (n - 1) // BLOCK_BYTES
    for block in range(blocks):
        for stripe in range(STRIPES_PER_BLOCK):
            _accumulate(acc, data, block * BLOCK_BYTES + stripe * STRIPE_BYTES, stripe * 8)
        _scramble(acc)
    last = blocks * BLOCK_BYTES
    for stripe in range((n - last - 1) // STRIPE_BYTES):
        _accumulate(acc, data, last + stripe * STRIPE_BYTES, stripe * 8)
    _accumulate(acc, data, n - STRIPE_BYTES, len(SECRET) - 71)
    result = n * PRIME64_1
    for i in range(0, 8, 2):
        result += _folded_product(
            acc[i] ^ _word64(SECRET, 11 + i * 8), acc[i + 1] ^ _word64(SECRET, 19 + i * 8)
        )
    return _avalanche(result & MASK64)


def xxh3_64(data):
    """The XXH3-64 checksum of a bytes-like object, as an integer."""
    data = bytes(data)
    n = len(data)
    if n == 0:
        return _avalanche_xxh64(_word64(SECRET, 56) ^ _word64(SECRET, 64))
    if n <= 3:
        return _hash_1_to_3(data)
    if n <= 8:
        return _hash_4_to_8(data)
    if n <= 16:
        return _hash_9_to_16(data)
    if n <= 128:
        return _hash_17_to_128(data)
    if n <= 240:
        return _hash_129_to_240(data)
    return _hash_long(data)
