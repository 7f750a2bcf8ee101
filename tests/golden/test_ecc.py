"""The SECDED code against the definition over GF(2), and what three wrong bits do."""
from __future__ import annotations

import itertools

import numpy as np

from golden.common import ecc
from golden.pe.local_memory import LocalMemory
from spec.ecc import CODE_BITS, COLUMNS, MASKS
from spec.params import PeParams

H = np.array([[c >> i & 1 for c in (*COLUMNS, *(1 << k for k in range(8)))] for i in range(8)])  # parity-check matrix, 8 x 72
RNG = np.random.default_rng(7)


def bits_of(word: int, check: int) -> np.ndarray:
    return np.array([word >> k & 1 for k in range(64)] + [check >> k & 1 for k in range(8)])


def flipped(word: int, check: int, bits: tuple[int, ...]) -> tuple[int, int]:
    for b in bits:
        word, check = (word ^ 1 << b, check) if b < 64 else (word, check ^ 1 << (b - 64))
    return word, check


def decode(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return ecc.decode(np.array([w for w, _ in pairs], np.uint64), np.array([c for _, c in pairs], np.uint8))


def test_matrix() -> None:
    assert len(set(COLUMNS)) == 64 and all(c.bit_count() in (3, 5) for c in COLUMNS)
    assert H.shape == (8, CODE_BITS) and (H.sum(axis=1) == 27).all(), "rows of equal weight"
    assert [m.bit_count() for m in MASKS] == [26] * 8
    assert all((MASKS[i] >> k & 1) == H[i, k] for i in range(8) for k in range(64))


def test_encode_gives_code_words() -> None:
    words = [0, (1 << 64) - 1, *(1 << k for k in range(64)), *map(int, RNG.integers(0, 1 << 64, 200, dtype=np.uint64))]
    for word, check in zip(words, ecc.encode(np.array(words, np.uint64)), strict=True):
        assert not (H @ bits_of(word, int(check)) % 2).any()
    assert ecc.encode(np.zeros((2, 3), np.uint64)).shape == (2, 3)


def test_every_single_and_double_error() -> None:
    word = int(RNG.integers(0, 1 << 64, dtype=np.uint64))
    check = int(ecc.encode(np.array([word], np.uint64))[0])
    fixed, single, double = decode([flipped(word, check, (k,)) for k in range(CODE_BITS)])
    assert (fixed == word).all() and single.all() and not double.any()
    pairs = [flipped(word, check, p) for p in itertools.combinations(range(CODE_BITS), 2)]
    fixed, single, double = decode(pairs)
    assert len(pairs) == 2556 and double.all() and not single.any()
    assert [int(x) for x in fixed] == [w for w, _ in pairs], "left as stored"
    fixed, single, double = decode([(word, check)])
    assert int(fixed[0]) == word and not single.any() and not double.any()


def test_triple_errors() -> None:
    """Outside what the code promises: most triples are taken for a single error."""
    syndromes = np.array([*COLUMNS, *(1 << k for k in range(8))])
    triples = np.array(list(itertools.combinations(range(CODE_BITS), 3)))
    taken = np.isin(np.bitwise_xor.reduce(syndromes[triples], axis=1), syndromes).mean()
    assert round(float(taken), 3) == 0.563


def test_memory_with_ecc_is_a_memory_of_bytes() -> None:
    """Random writes by strobes, with and without ECC, against an array of bytes; single flips never show."""
    plain, safe = (LocalMemory(PeParams(local_bytes=4096, ecc=e)) for e in (False, True))
    mirror = np.zeros((64, 64), np.uint8)
    for _ in range(500):
        row, data, strobes = int(RNG.integers(64)), RNG.integers(0, 256, 64, dtype=np.uint8), RNG.random(64) < RNG.choice([0.0, 0.1, 0.9, 1.0])
        flip = np.zeros((8, 9), np.uint8)
        flip[np.arange(8), RNG.integers(9, size=8)] = (1 << RNG.integers(8, size=8)).astype(np.uint8)
        plain.write(row, data, strobes)
        safe.write(row, data, strobes, flip)
        mirror[row][strobes] = data[strobes]
    for row in range(64):
        for memory in (plain, safe):
            data, error = memory.read(row)
            assert (data == mirror[row]).all() and not error
    assert safe.corrected > 0 and safe.damaged == 0


def test_damaged_word() -> None:
    memory = LocalMemory(PeParams(local_bytes=4096, ecc=True))
    old, new = np.full(64, 0x5A, np.uint8), np.full(64, 0xC3, np.uint8)
    flip = np.zeros((8, 9), np.uint8)
    flip[2, 0] = 3
    memory.write(5, old, np.ones(64, bool), flip)
    data, error = memory.read(5)
    assert error and data[16] == 0x5A ^ 3 and memory.damaged == 1
    part = np.zeros(64, bool)
    part[[9, 17]] = True  # a byte of word 1, a byte of the damaged word 2
    memory.write(5, new, part)
    assert memory.damaged == 2
    data, error = memory.read(5)
    assert error and data[9] == 0xC3 and data[17] == 0x5A, "the damaged word stays"
    memory.write(5, new, np.arange(64) // 8 == 2)
    data, error = memory.read(5)
    assert not error and (data[16:24] == 0xC3).all() and memory.damaged == 3


def test_load_and_bank() -> None:
    for on in (False, True):
        memory = LocalMemory(PeParams(local_bytes=4096, local_banks=4, ecc=on))
        values = RNG.integers(0, 256, 300, dtype=np.uint8)
        memory.load(100, values)
        flat = np.concatenate([memory.read(r)[0] for r in range(64)])
        assert (flat[100:400] == values).all() and not flat[:100].any() and not flat[400:].any() and memory.corrected == 0
        rows = memory.bank(1)
        assert rows.shape == (16, 72 if on else 64)
        assert (rows.reshape(16, 8, -1)[:, :, :8].reshape(16, 64) == memory.data[1::4]).all()
