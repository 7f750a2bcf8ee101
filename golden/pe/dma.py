"""The DMA engine: descriptors moved row by row on two byte arrays, with the status each ends in.

Rows are moved one after the other, in the order of the descriptors; a row is moved as memmove would. Everything else is about errors: what a descriptor
that fails has moved, its status and the failing address (rules in docs/blocks/dma.md).
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.numeric.arguments import typed
from spec.dma import DMA_DESCRIPTOR, INDEX_BYTES, PAGE_BYTES, ROW_BYTES, DmaOp, DmaStatus

Bytes = NDArray[np.uint8]
MASK = (1 << 64) - 1
Outcome = tuple[DmaStatus, int]


@dataclass
class Space:
    """A memory: its bytes, the addresses there are (`limit`, default its size), and ranges [start, end) whose words answer with an error.

    Words beyond the bytes but below `limit` answer with an error too. Bad words are not written; the other words of their burst are.
    `silent`: writes are not answered (local memory), so none is known to fail.
    """

    data: Bytes
    limit: int = 0
    bad: list[tuple[int, int]] = field(default_factory=list)
    silent: bool = False

    def __post_init__(self) -> None:
        typed(self.data, "memory")
        self.limit = self.limit or len(self.data)
        if len(self.data) % ROW_BYTES:
            raise ValueError(f"Space of {len(self.data)} bytes; expected a multiple of {ROW_BYTES}")

    def first_bad(self, start: int, end: int) -> int | None:
        """Address of the first word that fails among those that hold [start, end)."""
        first, last = start // ROW_BYTES, (end - 1) // ROW_BYTES
        ranges = [*self.bad, (len(self.data), (last + 1) * ROW_BYTES)]  # a word fails when its address is in one of them
        found = [w for low, high in ranges if (w := max(first, -(-low // ROW_BYTES))) <= last and w * ROW_BYTES < high]
        return min(found) * ROW_BYTES if found else None

    def write(self, start: int, values: Bytes) -> int | None:
        """Bytes at `start`, of words that take them. Returns the first word of the first burst that failed."""
        if not len(values):
            return None
        end = start + len(values)
        if self.first_bad(start, end) is None:
            self.data[start:end] = values
            return None
        failed = None
        at = start
        while at < end:
            stop = min((at // ROW_BYTES + 1) * ROW_BYTES, end)
            if self.first_bad(at, stop) is None:
                self.data[at:stop] = values[at - start : stop - start]
            elif failed is None:
                failed = max(at // PAGE_BYTES * PAGE_BYTES, start // ROW_BYTES * ROW_BYTES)
            at = stop
        return None if self.silent else failed


def _signed(x: int) -> int:
    return x - (1 << 32) if x >> 31 else x


class DmaEngine:
    """`memory` and `local`: the two spaces.

    :meth:`run` takes descriptors (words or field values) and returns (tag, status, address) of each.
    """

    def __init__(self, memory: Space, local: Space):
        self.memory, self.local = memory, local

    def run(self, descriptors: Iterable[int | Mapping[str, int]]) -> list[tuple[int, DmaStatus, int]]:
        out = []
        for given in descriptors:
            d = DMA_DESCRIPTOR.unpack(given if isinstance(given, int) else DMA_DESCRIPTOR.pack(given))
            status, addr = self._one(d)
            out.append((d["tag"], status, addr))
        return out

    def _one(self, d: dict[str, int]) -> Outcome:
        indexed = d["op"] in (DmaOp.GATHER, DmaOp.SCATTER)
        if indexed and max(d["planes"], d["repeats"]) > 1:
            return DmaStatus.KIND, 0
        if d["row_bytes"] == 0:
            return DmaStatus.EMPTY_ROW, 0
        if 0 in (d["rows"], d["planes"], d["repeats"]):
            return DmaStatus.EMPTY_COUNT, 0
        if indexed and d["index"] % INDEX_BYTES:
            return DmaStatus.ALIGN, d["index"]
        if indexed and d["index"] + INDEX_BYTES * d["rows"] > self.local.limit:
            return DmaStatus.RANGE_INDEX, d["index"]
        return self._rows(d)

    def _rows(self, d: dict[str, int]) -> Outcome:
        n, fill = d["row_bytes"], d["op"] == DmaOp.FILL
        source = self.local if d["src_local"] else self.memory
        target = self.local if d["dst_local"] else self.memory
        pattern = np.frombuffer((d["fill"].to_bytes(4, "little")), np.uint8)
        read_bad: int | None = None
        write_bad: int | None = None
        stop: Outcome = (DmaStatus.OK, 0)
        for src, dst in self._addresses(d):
            if isinstance(src, DmaStatus):
                stop = (src, dst)
                break
            if not fill and src + n > source.limit:
                stop = (DmaStatus.RANGE_SOURCE, src)
                break
            if dst + n > target.limit:
                stop = (DmaStatus.RANGE_DESTINATION, dst)
                break
            if not fill and source is target and src < dst < src + n:
                stop = (DmaStatus.OVERLAP, dst)
                break
            if fill:
                values = np.resize(pattern, n)
            elif read_bad is not None:
                continue
            else:
                bad = source.first_bad(src, src + n)
                good = n if bad is None else max(0, bad - src)
                read_bad = bad
                values = source.data[src : src + good].copy()
            failed = target.write(dst, values)
            if read_bad is not None:  # the row's last bursts carry no bytes, and may fail as well: a read error comes first
                continue
            write_bad = failed if write_bad is None else write_bad
        if read_bad is not None:
            return DmaStatus.READ_ERROR, read_bad
        if write_bad is not None:
            return DmaStatus.WRITE_ERROR, write_bad
        return stop

    def _addresses(self, d: dict[str, int]) -> Iterator[tuple[Any, int]]:
        """(source, destination) of every row in order; (INDEX_ERROR, address) where the index list ends in an error."""
        s = {k: _signed(d[k]) for k in ("row_src", "row_dst", "plane_src", "plane_dst", "repeat_src", "repeat_dst")}
        if d["op"] in (DmaOp.GATHER, DmaOp.SCATTER):
            gather = d["op"] == DmaOp.GATHER
            for r, index in enumerate(self._indices(d["index"], d["rows"])):
                if index < 0:
                    yield DmaStatus.INDEX_ERROR, -index - 1
                    return
                i, j = (index, r) if gather else (r, index)
                yield (d["src"] + i * s["row_src"]) & MASK, (d["dst"] + j * s["row_dst"]) & MASK
            return
        for c, b, a in product(range(d["repeats"]), range(d["planes"]), range(d["rows"])):
            yield tuple((d[x] + a * s[f"row_{x}"] + b * s[f"plane_{x}"] + c * s[f"repeat_{x}"]) & MASK for x in ("src", "dst"))  # type: ignore[misc]

    def _indices(self, at: int, count: int) -> Iterator[int]:
        """Indices; -1 - address at a word that fails. The words of the list are read one ahead: a word before the rows of the word before it."""
        first, last = at // ROW_BYTES, (at + INDEX_BYTES * count - 1) // ROW_BYTES
        words: dict[int, Bytes | None] = {}

        def fetch(w: int) -> None:
            if w <= last:
                start = w * ROW_BYTES
                words[w] = None if self.local.first_bad(start, start + ROW_BYTES) is not None else self.local.data[start : start + ROW_BYTES].copy()

        fetch(first)
        for w in range(first, last + 1):
            fetch(w + 1)
            held = words[w]
            for k in range(max(at, w * ROW_BYTES), min(at + INDEX_BYTES * count, (w + 1) * ROW_BYTES), INDEX_BYTES):
                if held is None:
                    yield -1 - w * ROW_BYTES
                    return
                k -= w * ROW_BYTES
                yield int.from_bytes(held[k : k + INDEX_BYTES].tobytes(), "little")
