"""HighwayHash-64, which guards every chunk of a Riegeli file.

Written from the paper "Fast keyed hash/pseudo-random function using SIMD multiply and permute"
(Alakuijala, Cox, Wassenberg, 2016) and its portable description.
"""

import struct

_M64 = 0xFFFF_FFFF_FFFF_FFFF
_M32 = 0xFFFF_FFFF
_INIT0 = (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
_INIT1 = (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)

_State = tuple[list[int], list[int], list[int], list[int]]


def highwayhash64(key: tuple[int, int, int, int], data: bytes | memoryview) -> int:
    """Hash ``data`` under a key of four 64-bit words.

    About 3 MB/s: callers bound how much they hash.
    """
    state = _start(key)
    whole = len(data) - len(data) % 32
    for packet in struct.iter_unpack("<4Q", data[:whole]):
        _update(state, packet)
    if len(data) > whole:
        _update_remainder(state, bytes(data[whole:]))
    for _ in range(4):
        v0 = state[0]
        swapped = tuple((v0[i] >> 32) | (v0[i] << 32 & _M64) for i in (2, 3, 0, 1))
        _update(state, swapped)
    v0, v1, mul0, mul1 = state
    return (v0[0] + v1[0] + mul0[0] + mul1[0]) & _M64


def _start(key: tuple[int, int, int, int]) -> _State:
    return (
        [i ^ k for i, k in zip(_INIT0, key, strict=True)],
        [i ^ ((k >> 32) | (k << 32 & _M64)) for i, k in zip(_INIT1, key, strict=True)],
        list(_INIT0),
        list(_INIT1),
    )


def _update(state: _State, lanes: tuple[int, ...]) -> None:
    v0, v1, mul0, mul1 = state
    for i in (0, 1, 2, 3):
        a = v1[i] = (v1[i] + mul0[i] + lanes[i]) & _M64
        b = v0[i]
        mul0[i] ^= (a & _M32) * (b >> 32)
        b = v0[i] = (b + mul1[i]) & _M64
        mul1[i] ^= (b & _M32) * (a >> 32)
    for to, by in ((v0, v1), (v1, v0)):
        for i in (0, 2):
            low, high = _zipper_merge(by[i], by[i + 1])
            to[i] = (to[i] + low) & _M64
            to[i + 1] = (to[i + 1] + high) & _M64


def _zipper_merge(a: int, b: int) -> tuple[int, int]:
    """Shuffle the bytes of two words so that the multiplier's good bits reach everywhere."""
    low = (
        ((a & 0xFF000000) | (b & 0xFF00000000)) >> 24
        | ((a & 0xFF0000000000) | (b & 0xFF000000000000)) >> 16
        | (a & 0xFF0000)
        | (a & 0xFF00) << 32
        | (b & 0xFF00000000000000) >> 8
        | (a << 56 & _M64)
    )
    high = (
        ((b & 0xFF000000) | (a & 0xFF00000000)) >> 24
        | (b & 0xFF0000)
        | (b & 0xFF0000000000) >> 16
        | (b & 0xFF00) << 24
        | (a & 0xFF000000000000) >> 8
        | (b & 0xFF) << 48
        | (a & 0xFF00000000000000)
    )
    return low, high


def _update_remainder(state: _State, tail: bytes) -> None:
    size = len(tail)
    v0 = state[0]
    v1 = state[1]
    for i in range(4):
        v0[i] = (v0[i] + (size << 32) + size) & _M64
        low = v1[i] & _M32
        high = v1[i] >> 32
        v1[i] = _rotate32(low, size) | _rotate32(high, size) << 32
    whole = size & ~3
    last = size & 3
    packet = bytearray(32)
    packet[:whole] = tail[:whole]
    if size & 16:
        packet[28:32] = tail[size - 4 :]
    elif last:
        last_bytes = tail[whole:]
        packet[16:19] = bytes((last_bytes[0], last_bytes[last >> 1], last_bytes[last - 1]))
    _update(state, struct.unpack("<4Q", packet))


def _rotate32(value: int, count: int) -> int:
    count &= 31
    return (value << count | value >> (32 - count)) & _M32 if count else value
