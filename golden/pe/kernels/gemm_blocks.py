"""Sizes of a GEMM's blocks for a processing element: what fits in local memory, and leaves the engine waiting least.

See golden/pe/kernels/gemm.py for what the blocks are. Nothing here changes a bit of the result.
"""
from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, product

from spec.params import PeParams
from spec.pe import CHUNK_BYTES

# For the choice alone: cycles that are about right on a memory 100 cycles away.
_TRIP = 140  # from the start of a transfer to its end, but for its words
_INSTRUCTION = 15
_SHORT = 64  # work below this is over before its instructions are given out
_SWITCH = 6  # from the last row of a group to the first of the one after the next in its accumulator bank, but for the rows
_FIRST = 16  # rows of the first block of A
_PART = 64  # rows of a part of W, at most
_OPERAND = 1 << 20  # bytes of an operand of an instruction, less than


class NoRoom(ValueError):
    """Not even the smallest blocks fit in local memory."""


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Rows of a block of A and of W, at most; blocks of A and of C that local memory has room for."""

    block_m: int
    block_n: int
    slots_a: int
    slots_c: int


@dataclass(frozen=True, kw_only=True)
class Task:
    """A block of A, rows [m0, m0 + rows), by a block of W, columns [n0, n0 + columns)."""

    n0: int
    columns: int
    m0: int
    rows: int
    first: bool  # of its block of W
    last: bool


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """`m`, `n`; `chunks` of a row; `beside` bytes of a row's scales; `size` of a result; `spare` bytes of local memory that are not for blocks."""

    pe: PeParams
    m: int
    n: int
    chunks: int
    beside: int
    size: int
    spare: int

    @property
    def pitch(self) -> int:
        """Bytes from row to row of an operand in local memory."""
        return (self.chunks + (self.chunks % 8 == 0)) * CHUNK_BYTES

    def room(self, rows: int) -> int:
        """Bytes of a block of an operand, its scales behind it, in whole rows of local memory."""
        return -(-rows * (self.pitch + self.beside) // 64) * 64

    def line(self, columns: int) -> int:
        """Bytes of a row of results in local memory. With one chunk a row is written every cycle: the same step from bank to bank as of the rows read meanwhile."""
        rows = -(-columns * self.size // 64)
        return (rows + ((1 - rows) % self.pe.local_banks if self.chunks == 1 else 0)) * 64

    def blocks(self) -> Blocks:
        """Of those that fit in local memory the sizes with which the engine waits least, by an estimate.

        Raises:
            NoRoom: none fits.
        """
        room = self.pe.local_bytes - self.spare
        groups, m_most = -(-self.n // self.pe.rows), min(self.pe.depth, self.m)
        widths = {-(-groups // over) * self.pe.rows for over in range(1, groups + 1)}  # blocks of about one size
        heights = {m_most, *(1 << s for s in range(12) if 1 << s < m_most)}
        best: tuple[tuple[float, int], Blocks] | None = None
        for block_n, block_m, slots_a, slots_c in product(sorted(widths), sorted(heights), (2, 3, 4), (2, 3, 4)):
            b = Blocks(block_m=block_m, block_n=block_n, slots_a=slots_a, slots_c=slots_c)
            sizes = self.wide(b), slots_a * self.room(block_m), slots_c * self.line(block_n) * block_m
            if sum(sizes) <= room and max(sizes) < _OPERAND:
                key = self._estimate(b), -slots_a - slots_c
                if best is None or key < best[0]:
                    best = key, b
        if best is None:
            raise NoRoom(f"rows of {self.chunks * CHUNK_BYTES + self.beside} bytes; two of A and {self.pe.rows} of W do not fit in {self.pe.local_bytes} bytes of local memory")
        return best[1]

    def _estimate(self, b: Blocks) -> float:
        """Cycles, about: for each block those of work, of transfers, of instructions or of what stands between them, whichever is most; then the end."""
        times, over = -(-self.m // b.block_m), -(-self.n // b.block_n)
        rows, columns = self.m / times, self.n / over
        work = max(rows * self.chunks, self.pe.rows * self.chunks, rows + _SWITCH) * -(-columns // self.pe.rows)
        work *= 1 + 0.05 * (rows < 2 * self.pe.rows)  # held rows come barely as fast as they are used up
        load = rows * (self.pitch + self.beside) / CHUNK_BYTES
        store = rows * max(columns * self.size / CHUNK_BYTES + 1, _TRIP / self.pe.dma_depth)
        parts = self.parts(b, b.block_n)
        pieces = len(parts) if self.beside else 1
        each = max(work, load + store, _INSTRUCTION * (2 + 2 * pieces), (load + _TRIP + work) / b.slots_a, (store + _TRIP + work) / b.slots_c)
        # To the next block of W: its first parts wait for the transfers before them, and the parts behind the first few wait in the core's queue.
        turn = max(0.0, load + store + 2 * _TRIP - work * sum(parts[:3]) / b.block_n) if over > 1 else 0
        return over * (times * (each + _INSTRUCTION) + turn) + min(1.0, _FIRST / rows) * store

    def wide(self, b: Blocks) -> int:
        """Bytes of a block of W in its parts."""
        return sum(map(self.room, self.parts(b, b.block_n)))

    def parts(self, b: Blocks, n: int) -> list[int]:
        """Rows of the parts of a block of W of `n` rows, whole groups: small ones first, the same in every block."""
        most = max(self.pe.rows, min(b.block_n // 4, _PART) // self.pe.rows * self.pe.rows)
        first = self.pe.rows
        while first < most and first // self.pe.rows * self.chunks * min(b.block_m, _FIRST) < _SHORT:
            first += self.pe.rows
        out: list[int] = []
        while (done := sum(out)) < n:
            out.append(min(max(first, min(most, done // 2 // self.pe.rows * self.pe.rows)), n - done))
        if self.n <= b.block_n and len(out) > 1 and out[-1] > first:  # there is one block: its end leaves early
            out[-1:] = [out[-1] - (cut := (out[-1] - 1) % self.pe.rows + 1), cut]
        return out

    def heights(self, b: Blocks, n: int, *, first: bool, last: bool) -> list[int]:
        """Rows of the blocks of A that stream by a block of W of `n` rows."""
        groups = -(-n // self.pe.rows)
        out: list[int] = []
        tail: list[int] = []
        rest = self.m
        if last and self.m >= 3 * _FIRST:
            tail.append(min(b.block_m, max(self.pe.rows, -(-_SHORT // (groups * self.chunks)))))
            while 2 * tail[0] <= b.block_m // 2 and 2 * (sum(tail) + 2 * tail[0]) <= self.m:
                tail.insert(0, 2 * tail[0])
            rest -= sum(tail)
        if first and rest >= 2 * _FIRST:
            size = min(b.block_m, _FIRST)
            following = 0.8 * (size * groups - n)  # rows that come while the first ones are multiplied, W on their way too
            while rest > b.block_m and size < b.block_m or not out:
                out.append(size)
                rest -= size
                size = min(b.block_m, rest, max(size, int(following)))
                following = 2 * size
        count = -(-rest // b.block_m)
        return [*out, *(rest // count + (i < rest % count) for i in range(count)), *tail]

    def tasks(self, b: Blocks) -> list[Task]:
        out = []
        for n0 in range(0, self.n, b.block_n):
            n = min(b.block_n, self.n - n0)
            heights = self.heights(b, n, first=n0 == 0, last=n0 + n == self.n)
            for i, (rows, end) in enumerate(zip(heights, accumulate(heights), strict=True)):
                out.append(Task(n0=n0, columns=n, m0=end - rows, rows=rows, first=i == 0, last=i == len(heights) - 1))
        return out

    def pieces(self, b: Blocks, t: Task, final: bool) -> list[int]:
        """Columns of the DOT instructions of a task: parts of W where they come or go one by one, and with MX, whose scales lie with their part."""
        if self.beside or t.first or t.last and not final:
            return self.parts(b, t.columns)
        if not final:
            return [t.columns]
        group = (t.columns - 1) // self.pe.rows * self.pe.rows  # the last one's first column
        return [x for x in (group, t.columns - group) if x]
