"""A processing element: the command processor's programs on golden units, one instruction at a time; bit-exact, no time.

A REDUCE instruction takes the sums of the oldest DOT instruction that no REDUCE has taken; in a program it comes after it, and without one it ends in ALONE. (A DOT instruction
without a REDUCE ends in ALONE too, after a while: time is not modelled here.)
"""
from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from golden.pe import layout_unit, matrix_unit, sfu_unit
from golden.pe.command_processor import CommandProcessor, Completion
from golden.pe.dma import DmaEngine, Space
from spec.dma import DmaOp, DmaStatus
from spec.isa import DMA_ARGS, DOT_ARGS, LAYOUT_ARGS, REDUCE_ARGS, SFU_ARGS, SIGNED_ARGS, CpStatus, Unit, UnitStatus
from spec.params import PeParams


def _signed(record_args: dict[str, int]) -> dict[str, int]:
    return {k: v - (1 << DMA_ARGS.widths[k]) if k in SIGNED_ARGS and v >> DMA_ARGS.widths[k] - 1 else v for k, v in record_args.items()}


class ProcessingElement:
    """`memory` is the element's view of main memory, changed in place; `local` its local memory, zero at first. Beyond the memory's bytes, up to address `limit`
    (default: none), and in the ranges `refused` memory answers with an error."""

    def __init__(self, pe: PeParams, memory: NDArray[np.uint8], limit: int = 0, refused: Iterable[tuple[int, int]] = ()):
        self.pe, self.memory = pe, memory
        self.local = np.zeros(pe.local_bytes, np.uint8)
        self.cp = CommandProcessor()
        self._dma = DmaEngine(Space(memory, limit, list(refused)), Space(self.local, silent=True))
        self._pending: deque[matrix_unit.Pending | None] = deque()  # None: of sizes that are not possible

    def run(self, *programs: Sequence[Mapping[str, int]]) -> list[Completion]:
        """A program for each core, to the end: a completion for every instruction."""
        done = self.cp.run(programs, self._carry)
        if self._pending and not self.cp.failed:  # no REDUCE comes any more
            alone = [c for c in done if c.unit == Unit.DOT and c.status == CpStatus.OK][-len(self._pending) :]
            for c in alone:
                c.status, c.info = CpStatus.UNIT, int(UnitStatus.ALONE)
            self.cp.failed = bool(alone)
        return done

    def clear(self) -> None:
        """After an error: go on, without the sums that no REDUCE took."""
        self.cp.failed = False
        self._pending.clear()

    def _carry(self, unit: Unit, op: int, args: int, at: tuple[int, int, int]) -> tuple[int, int]:
        a, b, d = at
        if unit is Unit.DMA:
            return self._move(_signed(DMA_ARGS.unpack(args)), a, b, d)
        if unit is Unit.DOT:
            fields = DOT_ARGS.unpack(args)
            status = matrix_unit.dot_status(self.pe, fields, a, b)
            if status == UnitStatus.OK:
                self._pending.append(matrix_unit.dot(self.local, fields, a, b))
            else:
                self._pending.append(matrix_unit.refused(fields) if matrix_unit.fits(self.pe, fields) else None)
            return int(status), 0
        if unit is Unit.REDUCE:
            fields = REDUCE_ARGS.unpack(args)
            if not self._pending:
                return int(UnitStatus.ALONE), 0
            pending = self._pending.popleft()
            status = matrix_unit.reduce_status(self.pe, fields, a, d, pending)
            if status == UnitStatus.OK and pending is not None:
                status = matrix_unit.reduce(self.local, pending, fields, a, d)
            return int(status), 0
        if unit is Unit.LAYOUT:
            f = LAYOUT_ARGS.unpack(args)
            job = dict(op=f["kind"], size=f["size"], tag=0, rows=f["rows"], columns=f["columns"], source=a, source_stride=f["stride_a"], destination=d,
                       destination_stride=f["stride_d"])
            return int(layout_unit.run(self.local, job)), 0
        return int(sfu_unit.run(self.local, op, SFU_ARGS.unpack(args), a, b, d)), 0

    def _move(self, f: dict[str, int], a: int, b: int, d: int) -> tuple[int, int]:
        out = f["to_memory"]
        near, far = ("src", "dst") if out else ("dst", "src")
        descriptor = dict(
            op=f["kind"], src_local=out, dst_local=1 - out, row_bytes=f["row_bytes"], rows=f["rows"], planes=f["planes"], repeats=1,
            src=a if out else f["address"], dst=f["address"] if out else d, index=b, fill=f["fill"])
        descriptor |= {f"row_{near}": f["row_local"], f"row_{far}": f["row_memory"], f"plane_{near}": f["plane_local"], f"plane_{far}": f["plane_memory"]}
        if f["kind"] == DmaOp.FILL:
            descriptor |= dict(src_local=0)
        packed = {k: v & 0xFFFFFFFF if k.startswith(("row_s", "row_d", "plane_")) else v for k, v in descriptor.items()}
        _, status, at = self._dma.run([packed])[0]
        return (int(status), at & 0xFFFFFF) if status >= DmaStatus.KIND else (0, 0)
