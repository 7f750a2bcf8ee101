"""What ranks ask for, checked one by one and against each other before anything runs."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccl.buffers import dtype_name, overlaps_itself
from hccl.errors import MismatchError, UsageError
from hccl.plan import OPS

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Call:
    """What one rank asked for."""

    rank: int
    collective: str
    send: Array
    recv: Array | None
    dtype: str
    op: str
    in_place: bool

    def terms(self) -> dict[str, Any]:
        """What must be equal on all ranks."""
        return {
            "collective": self.collective, "count": self.send.size, "dtype": self.dtype, "op": self.op,
            "shape": self.send.shape, "in_place": self.in_place,
        }  # fmt: skip


def make_call(rank: int, send: Array, recv: Array | None, dtype: str | None, op: str, in_place: bool) -> Call:
    """Raises: UsageError: an argument that cannot work."""
    who = f"rank {rank}: all_reduce"
    name = dtype_name(send, dtype, f"{who}: sendbuf")
    if op not in OPS:
        raise UsageError(f"{who}: op {op!r} is not supported; expected one of {', '.join(OPS)}")
    if op == "avg" and name == "int32":
        raise UsageError(f"{who}: avg of int32 is not supported; expected sum, min or max, or a float dtype")
    if in_place and recv is not None and recv is not send:
        raise UsageError(f"{who}: in_place with a recvbuf of its own; expected recvbuf None or the sendbuf")
    if recv is not None and recv is not send:
        if dtype_name(recv, dtype, f"{who}: recvbuf") != name or recv.dtype != send.dtype:
            raise UsageError(f"{who}: recvbuf is {recv.dtype}; expected {send.dtype}, as the sendbuf")
        if recv.shape != send.shape:
            raise UsageError(f"{who}: recvbuf has shape {recv.shape}; expected {send.shape}, as the sendbuf")
        if np.shares_memory(recv, send):
            raise UsageError(f"{who}: recvbuf overlaps sendbuf; expected the same array (in place) or none of it")
    target = send if in_place else recv
    if target is not None and not target.flags.writeable:
        raise UsageError(f"{who}: the array for the result is read-only; expected a writable one")
    if target is not None and overlaps_itself(target):
        raise UsageError(f"{who}: elements of the array for the result overlap (strides {target.strides}); expected each to have its own bytes")
    return Call(rank=rank, collective="all_reduce", send=send, recv=target, dtype=name, op=op,
                 in_place=in_place or recv is send)  # fmt: skip


def agree(calls: Sequence[Call | None], seq: int) -> None:
    """Raises: MismatchError: a rank is missing, or what they ask for differs; names the ranks and what differs."""
    missing = [r for r, c in enumerate(calls) if c is None]
    present = [c for c in calls if c is not None]
    if missing:
        what = present[0]
        raise MismatchError(
            f"collective {seq}: rank(s) {_list(missing)} did not call {what.collective} "
            f"({what.op}, {what.dtype}, count {what.send.size}), which rank(s) {_list([c.rank for c in present])} called"
        )
    for term in present[0].terms():
        groups: dict[Any, list[int]] = {}
        for c in present:
            groups.setdefault(c.terms()[term], []).append(c.rank)
        if len(groups) > 1:
            said = "; ".join(f"rank(s) {_list(ranks)}: {value}" for value, ranks in groups.items())
            raise MismatchError(f"collective {seq} ({present[0].collective}): {term} differs: {said}; expected one on all ranks")


def _list(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
