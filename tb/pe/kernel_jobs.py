"""Kernels with operands in memory, and memory as it must be afterwards: for the golden element, and for the simulated one."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from golden.pe.kernels import interaction, transpose
from golden.pe.kernels.gemm import pack_rows
from golden.pe.kernels.interaction import Interaction
from golden.pe.kernels.transpose import Transpose
from spec.params import PeParams
from spec.pe import DotFormat
from tb.pe.dot_jobs import codes

Bytes = NDArray[np.uint8]
STORE = {1: np.uint8, 2: np.uint16, 4: np.uint32}


class Kernel(Protocol):
    def program(self, pe: PeParams) -> list[dict[str, int]]: ...
    def bound(self, pe: PeParams) -> int: ...


@dataclass
class Job:
    """A kernel, memory before and after."""

    kernel: Kernel
    memory: Bytes
    want: Bytes


class Problem:
    """Makes a job: memory is noise but for what is put into it, at any byte unless it must be aligned."""

    def __init__(self, seed: int | np.random.Generator, nbytes: int = 1 << 22):
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
        data = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
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
        rows.reshape(len(rows), -1, 64)[:, -1, (k * 2 - 1) % 64 + 1:] = 0xFF  # behind K: does not count
        columns = k + vectors * (vectors - 1) // 2
        stride = 2 * columns + self.gap()
        kernel = Interaction(samples=samples, vectors=vectors, k=k, format=fmt, v=self.put(rows), x=self.room(stride * samples), stride_x=stride)
        return self.job(kernel, kernel.x, stride, interaction.direct(v.reshape(samples, vectors, k).astype(np.uint16), fmt))


