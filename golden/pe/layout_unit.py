"""Memory layout unit: tiles of a byte array copied or transposed, as strided views.

A job is a dict of the fields of `spec.layout_unit.LU_JOB`. :func:`cut` and :func:`join` make the jobs of a slice and of a concatenation.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from golden.numeric.arguments import fields, typed
from spec.layout_unit import LU_JOB, LayoutOp, LayoutStatus

Bytes = NDArray[np.uint8]
Job = Mapping[str, int]

ROW = 64
SIZES = (1, 2, 4)
FIELDS = tuple(f for f in LU_JOB.widths if f != "tag" and not f.startswith("_"))


def _tile(memory: Bytes, address: int, stride: int, rows: int, columns: int, size: int) -> Bytes:
    """(rows, columns, size) view of the bytes of a tile that lies in the memory."""
    return as_strided(memory[address:], (rows, columns, size), (stride if rows > 1 else 0, size, 1))


def _end(address: int, stride: int, rows: int, row_bytes: int) -> int:
    return address + (rows - 1) * stride + row_bytes


def judge(job: Job, memory_bytes: int) -> LayoutStatus:
    """How the job ends as far as its fields tell."""
    if job["op"] not in tuple(LayoutOp) or job["size"] >= len(SIZES):
        return LayoutStatus.OP
    size, rows, columns = SIZES[job["size"]], job["rows"], job["columns"]
    if not rows or not columns:
        return LayoutStatus.OK
    transposing = job["op"] == LayoutOp.TRANSPOSE
    if transposing and any(job[f] % size for f in ("source", "source_stride", "destination", "destination_stride")):
        return LayoutStatus.ALIGN
    out_rows, out_columns = (columns, rows) if transposing else (rows, columns)
    if out_rows > 1 and job["destination_stride"] < out_columns * size:
        return LayoutStatus.STRIDE
    ends = (_end(job["source"], job["source_stride"], rows, columns * size),
            _end(job["destination"], job["destination_stride"], out_rows, out_columns * size))
    return LayoutStatus.RANGE if max(ends) > memory_bytes else LayoutStatus.OK


def run(memory: Bytes, job: Job, damaged: Sequence[int] = ()) -> LayoutStatus:
    """Do the job on `memory`, a one-dimensional array. `damaged`: rows of 64 bytes that answer with an error.

    Raises:
        ValueError: a job that lacks a field, a memory of another shape. TypeError: a field that is no integer, a memory that is none of bytes.
    """
    if not typed(memory, "memory").flags.c_contiguous:
        raise ValueError("memory: a view with gaps; expected contiguous bytes")
    fields(job, FIELDS, "job")
    status = judge(job, len(memory))
    if status != LayoutStatus.OK or not job["rows"] or not job["columns"]:
        return status
    size, rows, columns = SIZES[job["size"]], job["rows"], job["columns"]
    values = _tile(memory, job["source"], job["source_stride"], rows, columns, size).copy()
    if job["op"] == LayoutOp.TRANSPOSE:
        values, rows, columns = values.transpose(1, 0, 2), columns, rows
    _tile(memory, job["destination"], job["destination_stride"], rows, columns, size)[:] = values
    first = job["source"] + np.arange(job["rows"]) * job["source_stride"]
    last = first + job["columns"] * size - 1
    hit = any(((first // ROW <= row) & (row <= last // ROW)).any() for row in damaged)
    return LayoutStatus.DAMAGED if hit else LayoutStatus.OK


def cut(base: int, stride: int, size: int, rows: slice, columns: slice, destination: int, destination_stride: int) -> dict[str, int]:
    """Job that copies rows and columns (with start and stop) of the tile at `base` out of it. `size` is the code of LU_JOB."""
    return dict(
        op=LayoutOp.COPY, size=size, rows=rows.stop - rows.start, columns=columns.stop - columns.start,
        source=base + rows.start * stride + columns.start * SIZES[size], source_stride=stride,
        destination=destination, destination_stride=destination_stride)


def join(parts: Sequence[tuple[int, int, int, int]], size: int, axis: int, destination: int, destination_stride: int) -> list[dict[str, int]]:
    """Jobs that set tiles (address, stride, rows, columns) one below the other (axis 0) or side by side (axis 1)."""
    jobs = []
    for address, stride, rows, columns in parts:
        jobs.append(dict(op=LayoutOp.COPY, size=size, rows=rows, columns=columns, source=address, source_stride=stride,
                         destination=destination, destination_stride=destination_stride))
        destination += columns * SIZES[size] if axis else rows * destination_stride
    return jobs
