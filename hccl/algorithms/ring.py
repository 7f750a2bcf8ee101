"""Ring all-reduce: reduce-scatter, then all-gather, each chunk cut into slices that travel as a pipeline.

The vector is divided into `ranks` chunks at multiples of 64 bytes: chunk c begins at unit ``ceil(units * c / ranks)``, a unit
being 64 bytes (the last may be shorter; a chunk may be empty). In step t = 0 … n-2 rank r sends chunk ``r - t`` to rank r + 1
and adds its own input to chunk ``r - 1 - t`` from rank r - 1; in steps n-1 … 2n-3 the finished chunks go round once more.

**Order of reduction**: chunk c is ``(((x[c] op x[c+1]) op x[c+2]) … op x[c+n-1])``, ranks modulo n, each `op` rounded to the
element type (float32 add or compare, one rounding to the 16-bit types). An average multiplies the float32 result of the last
`op` by the binary32 nearest 1/n, before its one rounding to the element type. One rank finishes a chunk and sends it to the
others, so all ranks hold the same bits. One rank alone copies its input; no arithmetic touches the bits.

Slice j of every chunk belongs to channel ``j % channels``. In a channel, with `lead` sends ahead of the reduction and `slots`
receives posted ahead of it, the queue holds, for every step and slice in turn::

    reduce i (when recv i is done) · recv i+slots (into the slot just freed) · send i+lead (when reduce i is done)

so the link works on the next slices while near-memory compute reduces this one.
"""
from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import pairwise

from hccl.algorithms.ranges import chunk_bounds
from hccl.dtypes import check_reduction, itemsize
from hccl.errors import UsageError
from hccl.moves import COPY_MAX, UNIT, slice_bytes
from hccl.plan import ChunkOp, Plan, Ref

SLOTS = 8
LEAD = 4

ORDER = (
    "chunk c (64-byte units ceil(units*c/n) to ceil(units*(c+1)/n)) = ((x[c] op x[c+1]) op ...) op x[c+n-1], "
    "ranks modulo n, rounded to the element type at each op; avg scales the last op's binary32 result by binary32(1/n)"
)


@dataclass(frozen=True, slots=True)
class Piece:
    """A slice of a chunk: bytes ``offset`` to ``offset + length`` of the vector."""

    offset: int
    length: int


def all_reduce(
    *,
    ranks: int,
    count: int,
    dtype: str = "float32",
    op: str = "sum",
    in_place: bool = False,
    channels: int = 4,
    mtu: int = 4096,
    window: int = 32,
    rq_depth: int = 32,
    sq_depth: int = 32,
    slots: int = SLOTS,
    lead: int = LEAD,
    slice_size: int | None = None,
) -> Plan:
    """The plan, for any rank count and element count. Fewer channels are used when there are fewer slices.

    Raises:
        UsageError: an argument out of range, an unknown dtype or op, or an average of integers.
    """
    check_reduction("all_reduce", dtype, op)
    for name, value, low in (("ranks", ranks, 1), ("count", count, 0), ("channels", channels, 1)):
        if not isinstance(value, int) or value < low:
            raise UsageError(f"all_reduce: {name} = {value!r}; expected an integer of at least {low}")
    if slice_size is not None and (slice_size < UNIT or slice_size % UNIT):
        raise UsageError(f"all_reduce: slice_size = {slice_size}; expected a multiple of {UNIT}")
    slots = min(slots, rq_depth, (window - 2) // 3)
    lead = min(lead, slots, sq_depth)
    if slots < 1:
        raise UsageError(f"all_reduce: window = {window}, rq_depth = {rq_depth}; expected room for one slot")

    nbytes = count * itemsize(dtype)
    head = Plan(
        collective="all_reduce", algorithm="ring", op=op, dtype=dtype, count=count, ranks=ranks, in_place=in_place,
        order=ORDER, window=window, rq_depth=rq_depth, sq_depth=sq_depth,
    )  # fmt: skip
    if ranks == 1:
        copies = [
            ChunkOp(kind="copy", length=min(COPY_MAX, nbytes - at), a=Ref("input", at), d=Ref("output", at))
            for at in range(0, 0 if in_place else nbytes, COPY_MAX)
        ]
        return dataclasses.replace(head, programs=((tuple(copies),),))

    bounds = chunk_bounds(nbytes, ranks)
    biggest = max((b - a for a, b in pairwise(bounds)), default=0)
    size = slice_size or slice_bytes(biggest, channels, mtu)
    used = max(1, min(channels, -(-biggest // size)))
    pieces = [[Piece(o, min(size, end - o)) for o in range(start, end, size)] for start, end in pairwise(bounds)]
    per_channel = [[p[ch::used] for p in pieces] for ch in range(used)]  # [channel][chunk] -> slices
    slot_bytes = min(size, -(-biggest // UNIT) * UNIT)
    deepest = max(len(c) for c in per_channel[0])
    slots = min(slots, 2 * min(lead, deepest) + 2, max((ranks - 1) * deepest, 1))
    programs = tuple(
        tuple(
            _channel(rank, ch, per_channel[ch], ranks=ranks, used=used, slots=slots, slot_bytes=slot_bytes,
                     lead=lead, sq_depth=sq_depth, avg=op == "avg")
            for ch in range(used)
        )
        for rank in range(ranks)
    )  # fmt: skip
    return dataclasses.replace(head, channels=used, slots=slots, slot_bytes=slot_bytes, programs=programs)


def _channel(
    rank: int, ch: int, chunks: list[list[Piece]], *, ranks: int, used: int, slots: int, slot_bytes: int, lead: int,
    sq_depth: int, avg: bool,
) -> tuple[ChunkOp, ...]:
    """Queue of one rank and channel. Items are numbered ``i = step * slices + slice``; those of empty slices are left out."""
    slices = max(len(c) for c in chunks)
    lead = min(lead, slices)
    steps = 2 * (ranks - 1)
    items = steps * slices
    prev, nxt = (rank - 1) % ranks, (rank + 1) % ranks
    ops: list[ChunkOp] = []
    sends: list[int] = []
    recv_at: dict[int, int] = {}  # item -> position in the queue
    reduce_at: dict[int, int] = {}
    slot_of: dict[int, int] = {}
    freed: list[int | None] = [None] * slots  # position of the reduce that last read the slot
    nslot = 0

    def piece(chunk: int, s: int) -> Piece | None:
        return chunks[chunk][s] if s < len(chunks[chunk]) else None

    def recv(i: int) -> None:
        nonlocal nslot
        step, s = divmod(i, slices)
        chunk = (rank - 1 - step) % ranks
        p = piece(chunk, s)
        if p is None:
            return
        recv_at[i] = len(ops)
        slot, at = None, Ref("output", p.offset)
        deps: tuple[int, ...] = ()
        if step < ranks - 1:
            slot = slot_of[i] = nslot % slots
            nslot += 1
            at = Ref("scratch", (ch * slots + slot) * slot_bytes)
            deps = tuple(d for d in (freed[slot],) if d is not None)
        ops.append(ChunkOp(
            kind="recv", length=p.length, peer=prev, chunk=chunk, slice=ch + s * used, step=step, d=at, slot=slot, deps=deps,
        ))  # fmt: skip

    def send(i: int) -> None:
        step, s = divmod(i, slices)
        chunk = (rank - step) % ranks
        p = piece(chunk, s)
        if p is None:
            return
        deps = set()
        # The item that brought this slice here; and never more than `lead` items ahead of what was consumed here.
        for needed in (i - slices, i - lead):
            at = reduce_at.get(needed, recv_at.get(needed))
            if at is not None:
                deps.add(at)
        if len(sends) >= sq_depth:
            deps.add(sends[-sq_depth])
        sends.append(len(ops))
        ops.append(ChunkOp(
            kind="send", length=p.length, peer=nxt, chunk=chunk, slice=ch + s * used, step=step,
            a=Ref("output" if step else "input", p.offset), deps=tuple(sorted(deps)),
        ))  # fmt: skip

    def reduce(i: int) -> None:
        step, s = divmod(i, slices)
        chunk = (rank - 1 - step) % ranks
        p = piece(chunk, s)
        if p is None or step >= ranks - 1:
            return
        slot = slot_of[i]
        freed[slot] = reduce_at[i] = len(ops)
        ops.append(ChunkOp(
            kind="reduce", length=p.length, chunk=chunk, slice=ch + s * used, step=step, slot=slot,
            a=Ref("scratch", (ch * slots + slot) * slot_bytes), b=Ref("input", p.offset), d=Ref("output", p.offset),
            scale=avg and step == ranks - 2, deps=(recv_at[i],),
        ))  # fmt: skip

    for i in range(min(slots, items)):
        recv(i)
    for i in range(lead):
        send(i)
    for i in range(items):
        reduce(i)
        if i + slots < items:
            recv(i + slots)
        if i + lead < items:
            send(i + lead)
    return tuple(ops)
