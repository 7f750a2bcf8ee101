"""Stimulus of the local memory, and its scoreboard: the golden memory makes the accesses in the order in which the ports were accepted."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from golden.pe.local_memory import LocalMemory
from tb.lib.bench import Bench

ROW = 64


@dataclass
class Traffic:
    """Requests of one port in one run: `write`, `addr` (n,), `data` (n, 64), `strb` (n, 64) bool, `flip` (n, 8, 9)."""

    write: np.ndarray
    addr: np.ndarray
    data: np.ndarray
    strb: np.ndarray
    flip: np.ndarray

    def __len__(self) -> int:
        return len(self.addr)

    def rows(self, addr_bits: int, flip: bool) -> np.ndarray:
        """Words of the request stream."""
        bits = [
            self.write[:, None].astype(np.uint8), (self.addr[:, None] >> np.arange(addr_bits) & 1).astype(np.uint8),
            np.unpackbits(self.data, axis=1, bitorder="little"), self.strb.astype(np.uint8),
        ]
        if flip:
            bits.append(np.unpackbits(self.flip.reshape(len(self), 72), axis=1, bitorder="little"))
        return np.packbits(np.concatenate(bits, axis=1), axis=1, bitorder="little")


def reads(addr) -> Traffic:
    return traffic(np.zeros(len(addr), bool), addr)


def writes(rng: np.random.Generator, addr, strb: np.ndarray | None = None, data: np.ndarray | None = None, flip: np.ndarray | None = None) -> Traffic:
    """Whole rows of random data unless told otherwise."""
    n = len(addr)
    return traffic(np.ones(n, bool), addr, rng.integers(0, 256, (n, ROW), dtype=np.uint8) if data is None else data, strb, flip)


def traffic(write: np.ndarray, addr, data: np.ndarray | None = None, strb: np.ndarray | None = None, flip: np.ndarray | None = None) -> Traffic:
    n = len(addr)
    return Traffic(
        write, np.asarray(addr), np.zeros((n, ROW), np.uint8) if data is None else data,
        np.ones((n, ROW), bool) if strb is None else strb, np.zeros((n, 8, 9), np.uint8) if flip is None else flip)


def joined(*parts: Traffic) -> Traffic:
    return Traffic(*(np.concatenate([getattr(t, f) for t in parts]) for f in ("write", "addr", "data", "strb", "flip")))


def random_traffic(rng: np.random.Generator, n: int, rows: int, *, reading: float = 0.5) -> Traffic:
    """Reads and writes of rows below `rows`; strobes none, sparse, dense, whole words, all."""
    density = rng.choice([0.0, 0.05, 0.5, 0.95, 1.0], n, p=[0.05, 0.2, 0.2, 0.1, 0.45])
    strb = rng.random((n, ROW)) < density[:, None]
    words = rng.random(n) < 0.2
    strb[words] = np.repeat(rng.random((int(words.sum()), 8)) < 0.5, 8, axis=1)
    return traffic(rng.random(n) >= reading, rng.integers(rows, size=n), rng.integers(0, 256, (n, ROW), dtype=np.uint8), strb)


class Board:
    """The bench with its golden memory: `run` drives every port, replays the log and compares every answer."""

    def __init__(self, b: Bench, ports: int, first: int | None = None, patience: int = 0):
        pe = b.config.node.pe
        self.b, self.ports = b, ports
        turns = (patience + 1) * (ports - 1) - 1
        self.most = [ports - 1 if first is None else 1 if p == first else turns for p in range(ports)]  # accesses of its bank by which a port may be passed over
        self.ecc = "corrected" in b.ports
        self.pe = pe.replace(ecc=self.ecc)
        self.golden = LocalMemory(self.pe)
        self.addr_bits = (self.golden.rows - 1).bit_length()
        self.accepted: list[np.ndarray] = []  # of the last run: for each port the index, in the log, of each accepted request
        self.longest = 0  # accesses of its bank by which a request was passed over, at most

    async def fill(self) -> None:
        """Every row written whole: contents are unknown before."""
        share = self.golden.rows // self.ports
        await self.run({p: writes(self.b.rng, np.arange(p * share, (p + 1) * share)) for p in range(self.ports)})

    async def run(self, work: dict[int, Traffic], *, fair: bool = True, deadline: int = 0) -> int:
        """`fair`: no answer is held back, so every port that waits waits for its bank. Returns the cycles."""
        b, none = self.b, reads(np.zeros(0, int))
        work = {p: work.get(p, none) for p in range(self.ports)}
        for p, t in work.items():
            b.source(f"p{p}__request").load(t.rows(self.addr_bits, self.ecc and p == 0))
            b.sink(f"p{p}__response").expect(int((~t.write).sum()))
        b.sink("log").backpressure = 0.0
        b.sink("log").expect(0, exact=False)
        cycles = await b.run(deadline or 400 + 60 * sum(map(len, work.values())))
        self._replay(work, fair)
        return cycles

    def _replay(self, work: dict[int, Traffic], fair: bool) -> None:
        n, log = self.ports, np.array(self.b.sink("log").words(), np.int64)
        at, passed = [0] * n, [0] * n
        accepted: list[list[int]] = [[] for _ in range(n)]
        want: list[list[np.ndarray]] = [[] for _ in range(n)]
        for cycle, word in enumerate(log):
            busy: set[int] = set()
            for p in range(n):
                if not word >> p & 1:
                    continue
                t, k = work[p], at[p]
                bank = int(t.addr[k]) % self.pe.local_banks
                assert bank not in busy, f"two accesses of bank {bank} in one cycle"
                busy.add(bank)
                if t.write[k]:
                    self.golden.write(int(t.addr[k]), t.data[k], t.strb[k], t.flip[k] if self.ecc else None)
                else:
                    row, error = self.golden.read(int(t.addr[k]))
                    want[p].append(np.append(row, np.uint8(error)))
            for p in range(n):
                waits = word >> (n + p) & 1 and not word >> p & 1
                if waits and int(work[p].addr[at[p]]) % self.pe.local_banks in busy:
                    passed[p] += 1
                    self.longest = max(self.longest, passed[p]) if fair else self.longest
                    assert not fair or passed[p] <= self.most[p], f"port {p}: passed over {passed[p]} times, expected {self.most[p]} at most"
                if word >> p & 1:
                    accepted[p].append(cycle)
                    at[p], passed[p] = at[p] + 1, 0
        self.accepted = [np.array(x) for x in accepted]
        for p, t in work.items():
            assert at[p] == len(t), f"port {p}: {at[p]} of {len(t)} requests accepted"
            got = self.b.sink(f"p{p}__response").array()
            assert len(got) == len(want[p])
            if len(got):
                wrong = np.argwhere((got != np.stack(want[p])).any(axis=1)).ravel()
                assert not len(wrong), (
                    f"port {p}: {len(wrong)} of {len(got)} answers differ; answer {wrong[0]}: {got[wrong[0]].tobytes()[::-1].hex()}, "
                    f"expected {want[p][wrong[0]].tobytes()[::-1].hex()} (error, then data from byte 63 down)")
        if self.ecc:
            counts = tuple(int(self.b.pin(x).value) for x in ("corrected", "damaged"))
            want_counts = (self.golden.corrected, self.golden.damaged)
            assert counts == want_counts, f"(corrected, damaged) {counts}, expected {want_counts}"
