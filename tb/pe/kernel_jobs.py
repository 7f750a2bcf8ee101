"""Kernels with operands in memory, and memory as it must be afterwards: for the golden element, and for the simulated one."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from golden.numeric import convert
from golden.pe.kernels import interaction, transpose
from golden.pe.kernels.elementwise import Elementwise
from golden.pe.kernels.embedding import EmbeddingBag, Gather
from golden.pe.kernels.gemm import pack_rows
from golden.pe.kernels.interaction import Interaction
from golden.pe.kernels.rowwise import RowKernel
from golden.pe.kernels.transpose import Transpose
from spec.convert import ConvertFormat
from spec.params import PeParams
from spec.pe import DotFormat
from spec.sfu import UNARY, SfuB, SfuOp
from tb.pe.dot_jobs import codes

Bytes = NDArray[np.uint8]
RANKING = Path(__file__).parents[2] / "examples" / "data" / "ranking.npz"
STORE = {1: np.uint8, 2: np.uint16, 4: np.uint32}


class Kernel(Protocol):
    def program(self, pe: PeParams) -> list[dict[str, int]]: ...
    def bound(self, pe: PeParams, latency: int = 0) -> int: ...


@dataclass
class Job:
    """A kernel, memory before and after."""

    kernel: Kernel
    memory: Bytes
    want: Bytes


class Problem:
    """Makes a job: memory is noise but for what is put into it, at any byte unless it must be aligned."""

    def __init__(self, seed: int | np.random.Generator, nbytes: int = 1 << 20):
        self.rng = np.random.default_rng(seed)
        self.memory = self.rng.integers(0, 256, nbytes, dtype=np.uint8)
        self.at = 64

    def room(self, nbytes: int, align: int = 1) -> int:
        at = -(-(self.at + int(self.rng.integers(0, 70))) // align) * align
        self.at = at + nbytes
        if self.at > len(self.memory):
            raise MemoryError(f"{self.at} bytes; memory has {len(self.memory)}")
        return at

    def put(self, rows: NDArray[Any], stride: int = 0, align: int = 1) -> int:
        """Rows (n, columns) `stride` bytes apart."""
        data = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), rows[:1].nbytes)
        stride = stride or data.shape[1]
        at = self.room(stride * len(data), align)
        self._write(self.memory, at, stride, data)
        return at

    @staticmethod
    def _write(memory: Bytes, at: int, stride: int, data: Bytes) -> None:
        memory[at + stride * np.arange(len(data))[:, None] + np.arange(data.shape[1])] = data

    def job(self, kernel: Kernel, at: int, stride: int, result: NDArray[Any]) -> Job:
        """`result`: rows of codes that the kernel must write at `at`."""
        want = self.memory.copy()
        self._write(want, at, stride, np.ascontiguousarray(result).view(np.uint8).reshape(len(result), -1))
        return Job(kernel, self.memory, want)

    def gap(self) -> int:
        return int(self.rng.integers(0, 9))

    def transpose(self, rows: int, columns: int, size: int, *, packed: bool = False) -> Job:
        a = self.rng.integers(0, 1 << 8 * size, (rows, columns)).astype(STORE[size])
        stride, stride_out = (n * size + (0 if packed else self.gap()) for n in (columns, rows))
        kernel = Transpose(rows=rows, columns=columns, size=size, a=self.put(a, stride), b=self.room(columns * stride_out), stride=stride, stride_out=stride_out)
        return self.job(kernel, kernel.b, stride_out, transpose.direct(a))

    def interaction(self, samples: int, vectors: int, k: int, fmt: DotFormat) -> Job:
        v = np.concatenate([codes(self.rng, fmt, samples * vectors) for _ in range(-(-k // fmt.lanes))], axis=1)[:, :k]
        rows = pack_rows(v, fmt)
        size = fmt.slot_bits // 8
        rows.reshape(len(rows), -1, 64)[:, -1, (k * size - 1) % 64 + 1:] = 0xFF  # behind K: does not count
        count = vectors * (vectors - 1) // 2
        apart = fmt is DotFormat.TFLOAT32
        stride, stride_pairs = size * (k + (0 if apart else count)) + self.gap(), size * count + self.gap()
        kernel = Interaction(samples=samples, vectors=vectors, k=k, format=fmt, v=self.put(rows), x=self.room(stride * samples), stride_x=stride,
                             **dict(pairs=self.room(stride_pairs * samples), stride_pairs=stride_pairs) if apart else {})
        head, pairs = interaction.direct(v.reshape(samples, vectors, k).astype(STORE[size]), fmt)
        if not apart:
            return self.job(kernel, kernel.x, stride, np.concatenate([head, pairs], axis=1))
        job = self.job(kernel, kernel.x, stride, head)
        self._write(job.want, kernel.pairs, stride_pairs, pairs.view(np.uint8))
        return job

    def codes(self, fmt: ConvertFormat, rows: int, columns: int, *, wild: bool = False) -> NDArray[Any]:
        """Numbers of the usual sizes; `wild`: every code, and rows with Inf and NaN."""
        size = fmt.slot_bits // 8
        if wild or not fmt.format.is_float:
            return self.rng.integers(0, 1 << min(fmt.format.bits, 8 * size), (rows, columns)).astype(STORE[size])
        values = (self.rng.standard_normal((rows, columns)) * 2).astype(np.float32).view(np.uint32)
        return convert.narrow(values, fmt.name.lower()) if fmt is not ConvertFormat.FLOAT32 else values

    def rowwise(self, kind: type[RowKernel], rows: int, columns: int, fmt: ConvertFormat, out: ConvertFormat | None = None, *, wild: bool = False, **vectors: bool) -> Job:
        """`vectors`: gamma=True, beta=True."""
        x = self.codes(fmt, rows, columns)
        if wild:
            special = self.codes(fmt, rows, columns, wild=True)
            x[::2] = special[::2]
            if fmt.format.inf_code is not None:
                x[-1, columns // 2] = fmt.format.inf_code
        shared = {name: self.codes(fmt, 1, columns) for name, given in vectors.items() if given}
        target = fmt if out is None else out
        stride, stride_out = (columns * f.slot_bits // 8 + self.gap() * (rows > 1) for f in (fmt, target))
        kernel = kind(rows=rows, columns=columns, format=fmt, format_out=out, x=self.put(x, stride), y=self.room(rows * stride_out), stride=stride, stride_out=stride_out,
                      **{name: self.put(v) for name, v in shared.items()})
        return self.job(kernel, kernel.y, stride_out, kernel.direct(x, **shared))  # type: ignore[attr-defined]

    def elementwise(self, op: SfuOp, rows: int, columns: int, fmt: ConvertFormat, out: ConvertFormat | None = None, *, source_b: SfuB = SfuB.SCALAR,
                    format_b: ConvertFormat | None = None, packed: bool = False, sat: bool = False) -> Job:
        x = self.codes(fmt, rows, columns, wild=True)
        shape = {SfuB.ROW: (1, columns), SfuB.COLUMN: (rows, 1)}.get(source_b, (rows, columns))
        b = None if source_b == SfuB.SCALAR or op in UNARY else self.codes(fmt if format_b is None else format_b, *shape)
        target = fmt if out is None else out
        stride, stride_out = (columns * f.slot_bits // 8 + (0 if packed else self.gap()) for f in (fmt, target))
        low, high = (int(np.float32(v).view(np.uint32)) for v in (-0.75, 1.5))
        kernel = Elementwise(op=op, rows=rows, columns=columns, format=fmt, format_out=out, x=self.put(x, stride), y=self.room(rows * stride_out), stride=stride,
                             stride_out=stride_out, b=0 if b is None else self.put(b), source_b=source_b, format_b=format_b, low=low, high=high, sat=sat)
        return self.job(kernel, kernel.y, stride_out, kernel.direct(x, b))

    def table(self, fmt: ConvertFormat, rows: int, columns: int, lookups: int) -> tuple[NDArray[Any], NDArray[Any], dict[str, int]]:
        """Table, indices, and where they are."""
        table, index = self.codes(fmt, rows, columns), self.rng.integers(0, rows, lookups).astype(np.uint32)
        stride = columns * fmt.slot_bits // 8 + self.gap()
        return table, index, dict(table=self.put(table, stride), stride=stride, index=self.put(index.reshape(-1, 1), 4, 4))

    def gather(self, rows: int, columns: int, lookups: int, fmt: ConvertFormat) -> Job:
        table, index, where = self.table(fmt, rows, columns, lookups)
        nbytes = columns * fmt.slot_bits // 8
        stride = nbytes + self.gap()
        kernel = Gather(lookups=lookups, row_bytes=nbytes, y=self.room(stride * lookups), stride_out=stride, **where)
        return self.job(kernel, kernel.y, stride, kernel.direct(table, index))

    def bags(self, lengths: Sequence[int], columns: int, fmt: ConvertFormat, out: ConvertFormat | None = None, *, rows: int = 200, wild: bool = False, **kw: Any) -> Job:
        table, index, where = self.table(fmt, rows, columns, sum(lengths))
        if wild:
            table[::3] = self.codes(fmt, len(table[::3]), columns, wild=True)
            self._write(self.memory, where["table"], where["stride"], table.view(np.uint8).reshape(rows, -1))
        stride = columns * (fmt if out is None else out).slot_bits // 8 + self.gap()
        kernel = EmbeddingBag(offsets=(0, *np.cumsum(lengths).tolist()), columns=columns, format=fmt, format_out=out, y=self.room(stride * len(lengths)), stride_out=stride,
                              **where, **kw)
        return self.job(kernel, kernel.y, stride, kernel.direct(table, index))


def ranking_file(samples: int = 256) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """(parameters, the first samples, torch's outputs for them) of examples/data/ranking.npz."""
    with np.load(RANKING, allow_pickle=False) as z:
        every = {k: z[k] for k in z.files if k != "meta"}
    batch = {k: every.pop(k)[: samples + (k == "offsets")] for k in ("dense", "categories", "offsets")}
    batch["genres"] = every.pop("genres")[: batch["offsets"][-1]]
    torch = {k: every.pop(k)[:samples] for k in ("logit", "probability")}
    return every, batch, torch
