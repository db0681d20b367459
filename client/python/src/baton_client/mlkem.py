"""ML-KEM-768 (FIPS 203) and the hybrid X-Wing (draft-connolly-cfrg-xwing-kem), over hashlib alone.

A client only encapsulates. Decapsulation is here for the known answers and for tests: its time depends on the secret, so
no server may use it. X25519 comes from the caller: this module needs no package. scripts/vector_checks.py loads it too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

_Q = 3329
_N = 256
_K = 3
_DU, _DV = 10, 4
_INVERSE_OF_128 = 3303
_X_WING_LABEL = b"\\.//^\\"

SEED_BYTES = 64
ENCAPSULATION_KEY_BYTES = 384 * _K + 32
CIPHERTEXT_BYTES = 32 * (_DU * _K + _DV)
HYBRID_KEY_BYTES = ENCAPSULATION_KEY_BYTES + 32
HYBRID_CIPHERTEXT_BYTES = CIPHERTEXT_BYTES + 32

Polynomial = list[int]
# `X25519(secret, public)` and `X25519(secret, base point)`; the first raises on an all-zero share.
Multiply = Callable[[bytes, bytes], bytes]
MultiplyBase = Callable[[bytes], bytes]


class MalformedKeyError(ValueError):
    """An encapsulation key of another length, or with a coefficient of 3329 or more (FIPS 203, section 7.2)."""


def _reversed_bits(number: int) -> int:
    return int(f"{number:07b}"[::-1], 2)


_ZETAS = [pow(17, _reversed_bits(index), _Q) for index in range(128)]
_GAMMAS = [pow(17, 2 * _reversed_bits(index) + 1, _Q) for index in range(128)]


def _hash_h(data: bytes) -> bytes:
    return hashlib.sha3_256(data).digest()


def _hash_g(data: bytes) -> tuple[bytes, bytes]:
    digest = hashlib.sha3_512(data).digest()
    return digest[:32], digest[32:]


def _prf(seed: bytes, number: int) -> bytes:
    return hashlib.shake_256(seed + bytes([number])).digest(128)


def _pack(values: Sequence[int], bits: int) -> bytes:
    """ByteEncode: little-endian bits of each value."""
    number = 0
    for value in reversed(values):
        number = number << bits | value
    return number.to_bytes(len(values) * bits // 8, "little")


def _unpack(data: bytes, bits: int) -> Polynomial:
    """ByteDecode, without the reduction modulo q."""
    number, mask = int.from_bytes(data, "little"), (1 << bits) - 1
    return [number >> bits * index & mask for index in range(_N)]


def _compress(values: Sequence[int], bits: int) -> Polynomial:
    return [((value << bits) + _Q // 2) // _Q & (1 << bits) - 1 for value in values]


def _decompress(values: Sequence[int], bits: int) -> Polynomial:
    half = 1 << bits - 1
    return [(value * _Q + half) >> bits for value in values]


def _sample_uniform(seed: bytes) -> Polynomial:
    """SampleNTT: rejection sampling. 1,008 bytes leave fewer than 256 values with a probability far below 2^-128."""
    values: Polynomial = []
    stream = hashlib.shake_128(seed).digest(1008)
    for at in range(0, len(stream), 3):
        first, second, third = stream[at : at + 3]
        values.extend(value for value in (first | (second & 15) << 8, second >> 4 | third << 4) if value < _Q)
        if len(values) >= _N:
            return values[:_N]
    raise MalformedKeyError("a seed without enough coefficients")


def _sample_noise(data: bytes) -> Polynomial:
    """SamplePolyCBD with eta 2."""
    values: Polynomial = []
    for byte in data:
        for half in (byte & 15, byte >> 4):
            values.append(((half & 1) + (half >> 1 & 1) - (half >> 2 & 1) - (half >> 3)) % _Q)
    return values


def _ntt(values: Sequence[int]) -> Polynomial:
    result, index, length = list(values), 1, 128
    while length >= 2:
        for start in range(0, _N, 2 * length):
            zeta = _ZETAS[index]
            index += 1
            for at in range(start, start + length):
                step = zeta * result[at + length] % _Q
                result[at + length] = (result[at] - step) % _Q
                result[at] = (result[at] + step) % _Q
        length //= 2
    return result


def _inverse_ntt(values: Sequence[int]) -> Polynomial:
    result, index, length = list(values), 127, 2
    while length <= 128:
        for start in range(0, _N, 2 * length):
            zeta = _ZETAS[index]
            index -= 1
            for at in range(start, start + length):
                low = result[at]
                result[at] = (low + result[at + length]) % _Q
                result[at + length] = zeta * (result[at + length] - low) % _Q
        length *= 2
    return [value * _INVERSE_OF_128 % _Q for value in result]


def _add(left: Sequence[int], right: Sequence[int]) -> Polynomial:
    return [(a + b) % _Q for a, b in zip(left, right, strict=True)]


def _product(left: Sequence[int], right: Sequence[int]) -> Polynomial:
    """MultiplyNTTs."""
    result: Polynomial = []
    for index, gamma in enumerate(_GAMMAS):
        a0, a1 = left[2 * index : 2 * index + 2]
        b0, b1 = right[2 * index : 2 * index + 2]
        result += [(a0 * b0 + a1 * b1 % _Q * gamma) % _Q, (a0 * b1 + a1 * b0) % _Q]
    return result


def _inner(left: Sequence[Polynomial], right: Sequence[Polynomial]) -> Polynomial:
    total = [0] * _N
    for a, b in zip(left, right, strict=True):
        total = _add(total, _product(a, b))
    return total


def _matrix(rho: bytes) -> list[list[Polynomial]]:
    return [[_sample_uniform(rho + bytes([column, row])) for column in range(_K)] for row in range(_K)]


def _noises(seed: bytes, first: int) -> list[Polynomial]:
    return [_sample_noise(_prf(seed, first + index)) for index in range(_K)]


def _key_of(d: bytes) -> tuple[bytes, list[Polynomial]]:
    """K-PKE.KeyGen: the encapsulation key, and the secret vector in the NTT domain."""
    rho, sigma = _hash_g(d + bytes([_K]))
    secret = [_ntt(noise) for noise in _noises(sigma, 0)]
    errors = [_ntt(noise) for noise in _noises(sigma, _K)]
    rows = [_add(_inner(row, secret), error) for row, error in zip(_matrix(rho), errors, strict=True)]
    return b"".join(_pack(row, 12) for row in rows) + rho, secret


def _vector_of(key: bytes) -> list[Polynomial]:
    """The vector of an encapsulation key; MalformedKeyError for a key that fails the checks of section 7.2."""
    if len(key) != ENCAPSULATION_KEY_BYTES:
        raise MalformedKeyError(f"{len(key)} bytes of an ML-KEM-768 key, not {ENCAPSULATION_KEY_BYTES}")
    vector = [_unpack(key[384 * index : 384 * (index + 1)], 12) for index in range(_K)]
    if any(value >= _Q for row in vector for value in row):
        raise MalformedKeyError("an ML-KEM-768 key with a coefficient of 3329 or more")
    return vector


def _encrypt(key: bytes, message: bytes, randomness: bytes) -> bytes:
    """K-PKE.Encrypt."""
    vector, matrix = _vector_of(key), _matrix(key[384 * _K :])
    y = [_ntt(noise) for noise in _noises(randomness, 0)]
    columns = [[matrix[row][column] for row in range(_K)] for column in range(_K)]
    u = [_add(_inverse_ntt(_inner(columns[row], y)), noise) for row, noise in enumerate(_noises(randomness, _K))]
    noise = _sample_noise(_prf(randomness, 2 * _K))
    bits = [int.from_bytes(message, "little") >> index & 1 for index in range(_N)]
    v = _add(_add(_inverse_ntt(_inner(vector, y)), noise), _decompress(bits, 1))
    return b"".join(_pack(_compress(row, _DU), _DU) for row in u) + _pack(_compress(v, _DV), _DV)


def _decrypt(secret: Sequence[Polynomial], ciphertext: bytes) -> bytes:
    """K-PKE.Decrypt."""
    size = 32 * _DU
    u = [_ntt(_decompress(_unpack(ciphertext[size * index : size * (index + 1)], _DU), _DU)) for index in range(_K)]
    v = _decompress(_unpack(ciphertext[size * _K :], _DV), _DV)
    message = [(a - b) % _Q for a, b in zip(v, _inverse_ntt(_inner(secret, u)), strict=True)]
    return _pack(_compress(message, 1), 1)


def public_key(seed: bytes) -> bytes:
    """The encapsulation key of a seed `d(32) ‖ z(32)`."""
    return _key_of(seed[:32])[0]


def encapsulate(key: bytes, message: bytes) -> tuple[bytes, bytes]:
    """The ciphertext and the share for 32 random bytes; MalformedKeyError for a malformed key."""
    share, randomness = _hash_g(message + _hash_h(key))
    return _encrypt(key, message, randomness), share


def decapsulate(seed: bytes, ciphertext: bytes) -> bytes:
    """The share of a ciphertext. A false ciphertext gives another share (implicit rejection)."""
    if len(ciphertext) != CIPHERTEXT_BYTES:
        raise ValueError(f"{len(ciphertext)} bytes of a ciphertext, not {CIPHERTEXT_BYTES}")
    key, secret = _key_of(seed[:32])
    message = _decrypt(secret, ciphertext)
    share, randomness = _hash_g(message + _hash_h(key))
    if _encrypt(key, message, randomness) != ciphertext:
        return hashlib.shake_256(seed[32:] + ciphertext).digest(32)
    return share


def _combine(share_m: bytes, share_x: bytes, message_x: bytes, key_x: bytes) -> bytes:
    return _hash_h(share_m + share_x + message_x + key_x + _X_WING_LABEL)


def hybrid_public(seed: bytes, base: MultiplyBase) -> bytes:
    """The X-Wing key of a 32-byte seed: the ML-KEM part, then the X25519 part."""
    expanded = hashlib.shake_256(seed).digest(96)
    return public_key(expanded[:64]) + base(expanded[64:])


def hybrid_encapsulate(key: bytes, randomness: bytes, multiply: Multiply, base: MultiplyBase) -> tuple[bytes, bytes]:
    """The ciphertext and the share for 64 random bytes: the first half is ML-KEM's, the second X25519's."""
    if len(key) != HYBRID_KEY_BYTES:
        raise MalformedKeyError(f"{len(key)} bytes of an exchange key, not {HYBRID_KEY_BYTES}")
    key_m, key_x = key[:ENCAPSULATION_KEY_BYTES], key[ENCAPSULATION_KEY_BYTES:]
    ciphertext, share_m = encapsulate(key_m, randomness[:32])
    message_x, share_x = base(randomness[32:]), multiply(randomness[32:], key_x)
    return ciphertext + message_x, _combine(share_m, share_x, message_x, key_x)


def hybrid_decapsulate(seed: bytes, ciphertext: bytes, multiply: Multiply, base: MultiplyBase) -> bytes:
    """The share of a ciphertext."""
    if len(ciphertext) != HYBRID_CIPHERTEXT_BYTES:
        raise ValueError(f"{len(ciphertext)} bytes of an encapsulation, not {HYBRID_CIPHERTEXT_BYTES}")
    expanded = hashlib.shake_256(seed).digest(96)
    message_x = ciphertext[CIPHERTEXT_BYTES:]
    share_m = decapsulate(expanded[:64], ciphertext[:CIPHERTEXT_BYTES])
    share_x = multiply(expanded[64:], message_x)
    return _combine(share_m, share_x, message_x, base(expanded[64:]))
