"""Calls of single ranks, collected by a group: programs as one process per rank would write them."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from hccl.buffers import dtype_name, from_bytes, pack, to_bytes, unpack
from hccl.calls import Array, Call, agree, make_call
from hccl.errors import MismatchError, UsageError, integer
from hccl.result import Result

if TYPE_CHECKING:
    from hccl.communicator import Communicator


@dataclass(frozen=True, kw_only=True)
class Message:
    """One half of a transfer between two ranks: `rank`'s send to, or recv from, `peer`."""

    rank: int
    peer: int
    array: Array
    dtype: str
    sends: bool


class Rank:
    """One rank's own calls, inside a group."""

    def __init__(self, comm: Communicator, rank: int):
        self.comm, self.number = comm, rank

    @property
    def nranks(self) -> int:
        return self.comm.nranks

    def _group(self, what: str) -> Group:
        if self.comm._group is None:
            raise UsageError(
                f"rank {self.number}: {what} outside a group would wait for the other ranks for ever; "
                f"expected `with comm.group():` around the calls of all ranks, or comm.{what} with one array per rank"
            )
        return self.comm._group

    def _call(self, collective: str, send: Array | None, recv: Array | None = None, **kw: Any) -> None:
        group = self._group(collective)
        group.calls[self.number].append(make_call(self.number, self.nranks, collective, send, recv, **kw))

    def all_reduce(
        self, sendbuf: Array, recvbuf: Array | None = None, *, dtype: str | None = None, op: str = "sum", in_place: bool = False,
        factor: float | None = None,
    ) -> None:  # fmt: skip
        """Enqueue this rank's part; it runs when the group ends. The other calls do the same.

        Raises:
            UsageError: outside a group, or an argument that cannot work.
        """
        self._call("all_reduce", sendbuf, recvbuf, dtype=dtype, op=op, in_place=in_place, factor=factor)

    def reduce(
        self, sendbuf: Array, recvbuf: Array | None = None, *, root: int = 0, dtype: str | None = None, op: str = "sum", in_place: bool = False,
        factor: float | None = None,
    ) -> None:  # fmt: skip
        self._call("reduce", sendbuf, recvbuf, root=root, dtype=dtype, op=op, in_place=in_place, factor=factor)

    def reduce_scatter(
        self, sendbuf: Array, recvbuf: Array | None = None, *, dtype: str | None = None, op: str = "sum", in_place: bool = False,
        factor: float | None = None,
    ) -> None:  # fmt: skip
        self._call("reduce_scatter", sendbuf, recvbuf, dtype=dtype, op=op, in_place=in_place, factor=factor)

    def reduce_scatter_v(
        self, sendbuf: Array, splits: Sequence[int], recvbuf: Array | None = None, *, dtype: str | None = None, op: str = "sum",
        in_place: bool = False, factor: float | None = None,
    ) -> None:  # fmt: skip
        self._call("reduce_scatter_v", sendbuf, recvbuf, splits=splits, dtype=dtype, op=op, in_place=in_place, factor=factor)

    def all_gather(self, sendbuf: Array, recvbuf: Array | None = None, *, dtype: str | None = None, in_place: bool = False) -> None:
        self._call("all_gather", sendbuf, recvbuf, dtype=dtype, in_place=in_place)

    def all_gather_v(
        self, sendbuf: Array, recvbuf: Array | None = None, *, splits: Sequence[int] | None = None, dtype: str | None = None, in_place: bool = False
    ) -> None:
        self._call("all_gather_v", sendbuf, recvbuf, splits=splits, dtype=dtype, in_place=in_place)

    def broadcast(
        self, sendbuf: Array | None, recvbuf: Array | None = None, *, root: int = 0, dtype: str | None = None, in_place: bool = False
    ) -> None:
        self._call("broadcast", sendbuf, recvbuf, root=root, dtype=dtype, in_place=in_place)

    def gather(self, sendbuf: Array, recvbuf: Array | None = None, *, root: int = 0, dtype: str | None = None, in_place: bool = False) -> None:
        self._call("gather", sendbuf, recvbuf, root=root, dtype=dtype, in_place=in_place)

    def scatter(
        self, sendbuf: Array | None, recvbuf: Array | None = None, *, root: int = 0, dtype: str | None = None, in_place: bool = False
    ) -> None:
        self._call("scatter", sendbuf, recvbuf, root=root, dtype=dtype, in_place=in_place)

    def all_to_all(self, sendbuf: Array, recvbuf: Array | None = None, *, dtype: str | None = None, in_place: bool = False) -> None:
        self._call("all_to_all", sendbuf, recvbuf, dtype=dtype, in_place=in_place)

    def all_to_all_v(
        self, sendbuf: Array, send_splits: Sequence[int], recvbuf: Array | None = None, *, recv_splits: Sequence[int] | None = None,
        dtype: str | None = None, in_place: bool = False,
    ) -> None:  # fmt: skip
        self._call("all_to_all_v", sendbuf, recvbuf, splits=send_splits, recv_splits=recv_splits, dtype=dtype, in_place=in_place)

    def barrier(self) -> None:
        self._call("barrier", None)

    def send(self, sendbuf: Array, peer: int, *, dtype: str | None = None) -> None:
        """The k-th send to a rank meets its k-th recv from this one; all of a group run together, after its collectives."""
        self._message("send", sendbuf, peer, dtype)

    def recv(self, recvbuf: Array, peer: int, *, dtype: str | None = None) -> None:
        self._message("recv", recvbuf, peer, dtype)

    def _message(self, what: str, array: Array, peer: int, dtype: str | None) -> None:
        group, who = self._group(what), f"rank {self.number}: {what}"
        peer = integer(f"{who}: peer", peer, 0, self.nranks - 1)
        name = dtype_name(array, dtype, who)
        if what == "recv" and not array.flags.writeable:
            raise UsageError(f"{who}: the array for the result is read-only; expected a writable one")
        group.messages.append(Message(rank=self.number, peer=peer, array=array, dtype=name, sends=what == "send"))


class Group:
    """Calls of ranks, collected; `results` holds one Result per collective after the block, and one for its messages."""

    def __init__(self, comm: Communicator, deadline: int | None, **choice: Any):
        self.comm, self.deadline, self.choice = comm, deadline, choice
        self.calls: list[list[Call]] = [[] for _ in range(comm.nranks)]
        self.messages: list[Message] = []
        self.results: list[Result] = []

    def __enter__(self) -> Self:
        if self.comm._group is not None:
            raise UsageError("a group is already open; expected group ends before the next starts")
        self.comm._group = self
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.comm._group = None
        if kind is not None:
            return
        rounds = [[c[i] if i < len(c) else None for c in self.calls] for i in range(max(len(c) for c in self.calls))]
        for i, calls in enumerate(rounds):  # nothing runs unless all of it agrees
            agree(calls, self.comm.seq + i)
        messages = exchange(self.comm, self.messages, self.comm.seq + len(rounds)) if self.messages else None
        for calls in rounds:
            self.results.append(self.comm._run([c for c in calls if c is not None], self.deadline, **self.choice))
        if messages is not None:
            self.results.append(messages(self.deadline))


def exchange(comm: Communicator, messages: list[Message], seq: int) -> Callable[[int | None], Result]:
    """What runs the messages of a group, once they are checked.

    Raises:
        MismatchError: a send without its recv, or two that differ.
    """
    n = comm.nranks
    sends: dict[tuple[int, int], list[Message]] = {}
    recvs: dict[tuple[int, int], list[Message]] = {}
    for m in messages:
        (sends if m.sends else recvs).setdefault((m.rank, m.peer) if m.sends else (m.peer, m.rank), []).append(m)
    for src, dst in sorted(sends.keys() | recvs.keys()):
        out, inn = sends.get((src, dst), []), recvs.get((src, dst), [])
        for k, (s, r) in enumerate(zip(out, inn, strict=False)):
            if (s.dtype, s.array.size) != (r.dtype, r.array.size):
                raise MismatchError(
                    f"collective {seq}: message {k} from rank {src} to rank {dst} differs: rank {src} sends {s.array.size} of {s.dtype}, "
                    f"rank {dst} expects {r.array.size} of {r.dtype}"
                )
        if len(out) != len(inn):
            raise MismatchError(f"collective {seq}: rank {src} sends {len(out)} message(s) to rank {dst}, which receives {len(inn)} from it")
    sizes = tuple(sum(m.array.nbytes for m in sends.get((s, d), ())) for s in range(n) for d in range(n))

    def run(deadline: int | None) -> Result:
        comm._usable()
        made = comm.make_plan("send_recv", n, 0, "uint8", splits=sizes)
        plan = made.plan
        inputs = []
        for s in range(n):
            rows = [to_bytes(m.array) for d in range(n) for m in sends.get((s, d), ())]
            dense = np.concatenate(rows) if rows else np.zeros(0, np.uint8)
            inputs.append(pack(dense, plan.layout.inputs[s], plan.buffer_bytes("input", s)))
        fields, data = comm._carry_out(made, inputs, (), deadline, "send_recv")
        for d in range(n):
            dense, at = unpack(data[d], plan.layout.outputs[d]), 0
            for s in range(n):
                for m in recvs.get((s, d), ()):
                    m.array[...] = from_bytes(dense[at : at + m.array.nbytes], m.array)
                    at += m.array.nbytes
        return Result(**fields, outputs=[None] * n)

    return run
