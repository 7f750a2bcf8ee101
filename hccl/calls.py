"""What ranks ask for, checked one by one and against each other before anything runs."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccl.buffers import dtype_name, overlaps_itself
from hccl.dtypes import DTYPES, check_reduction
from hccl.errors import MismatchError, UsageError, integer
from hccl.layout import REDUCING, ROOTED

Array = NDArray[Any]
GATHERING, SCATTERING = ("all_gather", "gather"), ("reduce_scatter", "scatter")


@dataclass(frozen=True, kw_only=True)
class Call:
    """What one rank asked for.

    `collective` may end in ``_v``: blocks of their own sizes. `send` is what the rank gives (None: nothing), `recv` where its result goes (None: a new
    array). `splits` are elements for each rank, `recv_splits` elements it expects from each. `shape` is that of a block, or None.
    """

    rank: int
    ranks: int
    collective: str
    send: Array | None
    recv: Array | None
    dtype: str
    op: str
    in_place: bool
    root: int = 0
    splits: tuple[int, ...] | None = None
    recv_splits: tuple[int, ...] | None = None
    factor: float | int = 1

    @property
    def base(self) -> str:
        return self.collective.removesuffix("_v")

    @property
    def uneven(self) -> bool:
        return self.collective.endswith("_v")

    @property
    def gives(self) -> bool:
        return self.base not in ("broadcast", "scatter") or self.rank == self.root

    @property
    def takes(self) -> bool:
        return self.base not in ("reduce", "gather") or self.rank == self.root

    @property
    def shape(self) -> tuple[int, ...] | None:
        array = self.send if self.send is not None else self.recv if self.base == "broadcast" else None
        if array is None or self.uneven:
            return None
        return (array.size,) if self.in_place and self.base in (*GATHERING, *SCATTERING) else array.shape

    def terms(self) -> dict[str, Any]:
        """What must be equal on all ranks (None: not said by this one)."""
        rows = {"collective": self.collective}
        if self.base == "barrier":
            return rows
        shape = self.shape
        return rows | {
            "count": None if shape is None else math.prod(shape), "dtype": self.dtype or None, "op": self.op, "root": self.root,
            "shape": shape, "in_place": self.in_place, "splits": self.splits if self.base in SCATTERING else None,
        }  # fmt: skip

    def what(self) -> str:
        sizes = f"splits {list(self.splits)}" if self.splits is not None else "" if self.send is None else f"count {self.send.size}"
        return ", ".join(filter(None, (self.op, self.dtype, sizes)))


def make_call(
    rank: int, ranks: int, collective: str, send: Array | None, recv: Array | None = None, *, dtype: str | None = None, op: str = "",
    in_place: bool = False, root: int = 0, splits: Sequence[int] | None = None, recv_splits: Sequence[int] | None = None, factor: Any = None,
) -> Call:  # fmt: skip
    """Raises: UsageError: an argument that cannot work."""
    who, base = f"rank {rank}: {collective}", collective.removesuffix("_v")
    root = integer(f"{who}: root", root, 0, ranks - 1) if base in ROOTED else 0
    at_root = rank == root
    gives, takes = base not in ("broadcast", "scatter") or at_root, base not in ("reduce", "gather") or at_root
    in_form = in_place  # of this rank's own buffers
    if base in ROOTED and not at_root and in_place:
        in_form = False
        if base in ("broadcast", "scatter") and recv is None:
            send, recv = None, send if base == "broadcast" else None
    if not gives or base == "barrier":
        send = None
    elif send is None:
        raise UsageError(f"{who}: sendbuf is None; expected an array: this rank's part is needed")
    if not takes:
        recv = None
    known = send if send is not None else recv
    name = dtype or "" if known is None else dtype_name(known, dtype, f"{who}: {'sendbuf' if send is not None else 'recvbuf'}")
    if base in REDUCING:
        check_reduction(who, name, op)
    rows = _splits(who, "splits" if base != "all_to_all" else "send_splits", splits, ranks), _splits(who, "recv_splits", recv_splits, ranks)
    if in_form and recv is not None and recv is not send:
        raise UsageError(f"{who}: in_place with a recvbuf of its own; expected recvbuf None or the sendbuf")
    if recv is not None and recv is not send:
        if dtype_name(recv, dtype, f"{who}: recvbuf") != name or (send is not None and recv.dtype != send.dtype):
            raise UsageError(f"{who}: recvbuf is {recv.dtype}; expected {send.dtype if send is not None else name}, as the sendbuf")
        if base in ("all_reduce", "reduce", "broadcast") and send is not None and recv.shape != send.shape:
            raise UsageError(f"{who}: recvbuf has shape {recv.shape}; expected {send.shape}, as the sendbuf")
    in_form |= recv is not None and recv is send
    source, target = send, recv
    if in_form and base in (*GATHERING, *SCATTERING):
        source, target = _parts(who, base, send, rank, ranks, rows[0])
    elif in_form:
        target = send
    elif send is not None and recv is not None and np.shares_memory(recv, send):
        if base in (*GATHERING, *SCATTERING):
            whole, part = (recv, send) if base in GATHERING else (send, recv)
            source, target = _parts(who, base, whole, rank, ranks, rows[0])
            if not _same(part, source if base in GATHERING else target):
                raise UsageError(f"{who}: recvbuf overlaps sendbuf; expected none of it, or block {rank} exactly (in place)")
            in_form = True
        else:
            raise UsageError(f"{who}: recvbuf overlaps sendbuf; expected the same array (in place) or none of it")
    if target is not None and not target.flags.writeable:
        raise UsageError(f"{who}: the array for the result is read-only; expected a writable one")
    if target is not None and overlaps_itself(target):
        raise UsageError(f"{who}: elements of the array for the result overlap (strides {target.strides}); expected each to have its own bytes")
    if send is not None and base in (*SCATTERING, "all_to_all"):
        _divides(who, send, rows[0], ranks)
    return Call(
        rank=rank, ranks=ranks, collective=collective, send=source, recv=target, dtype=name, op=op, root=root, splits=rows[0], recv_splits=rows[1],
        in_place=in_place or in_form, factor=_factor(who, name, factor, op),
    )  # fmt: skip


def _splits(who: str, what: str, splits: Any, ranks: int) -> tuple[int, ...] | None:
    if splits is None:
        return None
    if not isinstance(splits, Sequence | np.ndarray) or len(splits) != ranks:
        raise UsageError(f"{who}: {what} = {splits!r}; expected {ranks} sizes, one per rank")
    return tuple(integer(f"{who}: {what}[{i}] of {[*splits]}", s, 0) for i, s in enumerate(splits))


def _divides(who: str, send: Array, splits: tuple[int, ...] | None, ranks: int) -> None:
    if splits is None and send.size % ranks:
        raise UsageError(f"{who}: sendbuf has {send.size} elements; expected a multiple of {ranks}, a block for every rank")
    if splits is not None and sum(splits) != send.size:
        raise UsageError(f"{who}: splits {list(splits)} are {sum(splits)} elements, sendbuf has {send.size}; expected them to be equal")


def _parts(who: str, base: str, whole: Array | None, rank: int, ranks: int, splits: tuple[int, ...] | None) -> tuple[Array, Array]:
    """Source and target of an in-place form whose other buffer is block `rank` of `whole`."""
    assert whole is not None
    if not whole.flags.c_contiguous:
        raise UsageError(f"{who}: in place in an array with strides {whole.strides}; expected a contiguous one, of which blocks are parts")
    _divides(who, whole, splits, ranks)
    sizes = splits or (whole.size // ranks,) * ranks
    start = sum(sizes[:rank])
    part = whole.reshape(-1)[start : start + sizes[rank]]
    return (part, whole) if base in GATHERING else (whole, part)


def _same(a: Array, b: Array | None) -> bool:
    return b is not None and a.flags.c_contiguous and a.ctypes.data == b.ctypes.data and a.nbytes == b.nbytes


def _factor(who: str, dtype: str, factor: Any, op: str) -> float | int:
    """The factor of a premul_sum, checked."""
    if op != "premul_sum":
        if factor is not None:
            raise UsageError(f"{who}: factor = {factor!r} with op {op!r}; expected one with premul_sum only")
        return 1
    if factor is None:
        raise UsageError(f"{who}: premul_sum without a factor; expected factor=")
    if DTYPES[dtype].kind in ("int", "uint"):
        info = np.iinfo(dtype)
        return integer(f"{who}: factor of {dtype}", factor, int(info.min), int(info.max))
    if isinstance(factor, bool) or not isinstance(factor, int | float | np.integer | np.floating) or not math.isfinite(factor):
        raise UsageError(f"{who}: factor = {factor!r}; expected a finite real number for {dtype}")
    return float(factor)


def agree(calls: Sequence[Call | None], seq: int) -> None:
    """Raises: MismatchError: a rank is missing, or what they ask for differs; names the ranks and what differs."""
    missing = [r for r, c in enumerate(calls) if c is None]
    present = [c for c in calls if c is not None]
    if missing:
        what = present[0]
        raise MismatchError(
            f"collective {seq}: rank(s) {_list(missing)} did not call {what.collective} ({what.what()}), "
            f"which rank(s) {_list([c.rank for c in present])} called"
        )
    for term in present[0].terms():
        groups: dict[Any, list[int]] = {}
        for c in present:
            said = c.terms().get(term)
            if said is not None:
                groups.setdefault(said, []).append(c.rank)
        if len(groups) > 1:
            told = "; ".join(f"rank(s) {_list(ranks)}: {value}" for value, ranks in groups.items())
            raise MismatchError(f"collective {seq} ({present[0].collective}): {term} differs: {told}; expected one on all ranks")


def sizes_of(calls: Sequence[Call], seq: int) -> tuple[int, tuple[int, ...]]:
    """(count, splits) of calls that agree, as a plan takes them.

    Raises:
        MismatchError: lists of sizes that contradict each other. UsageError: a recvbuf of another size.
    """
    first = calls[0]
    ranks, base = first.ranks, first.base
    giver = next((c for c in calls if c.send is not None), first)
    size = 0 if giver.send is None else giver.send.size
    count, splits = size, tuple[int, ...]()
    if base == "all_to_all":
        rows = [c.splits or (0 if c.send is None else c.send.size // ranks,) * ranks for c in calls]
        for c in calls:
            for s, n in enumerate(c.recv_splits or ()):
                if n != rows[s][c.rank]:
                    raise MismatchError(
                        f"collective {seq} ({c.collective}): rank {c.rank} expects {n} elements from rank {s} (recv_splits {list(c.recv_splits or ())}), "
                        f"which sends {rows[s][c.rank]} (send_splits {list(rows[s])})"
                    )
        count, splits = (0, tuple(n for row in rows for n in row)) if first.uneven else (size // ranks, ())
    elif base in SCATTERING:
        count, splits = (0, giver.splits or (size // ranks,) * ranks) if first.uneven else (size // ranks, ())
    elif base in GATHERING and first.uneven:
        count, splits = 0, tuple(0 if c.send is None else c.send.size for c in calls)
        for c in calls:
            if c.splits is not None and c.splits != splits:
                raise MismatchError(f"collective {seq} ({c.collective}): rank {c.rank} says splits {list(c.splits)}; the ranks give {list(splits)}")
    for c in calls:
        want = result_size(c, count, splits)
        if c.takes and c.recv is not None and c.recv.size != want:
            raise UsageError(f"rank {c.rank}: {c.collective}: recvbuf has {c.recv.size} elements; expected {want}")
    return count, splits


def result_size(call: Call, count: int, splits: tuple[int, ...]) -> int:
    """Elements of the rank's result."""
    n = call.ranks
    if call.base == "all_to_all":
        return sum(splits[call.rank :: n]) if splits else count * n
    if call.base in SCATTERING:
        return splits[call.rank] if splits else count
    if call.base in GATHERING:
        return sum(splits) if splits else count * n
    return count


def new_result(call: Call, giver: Call, size: int) -> Array:
    """An array for a result that has none: of the shape of what was given where blocks are even; blocks are put together along the first dimension."""
    like = call.send if call.send is not None else giver.send
    assert like is not None
    shape: tuple[int, ...] = (size,)
    if not call.uneven:
        n, given = call.ranks, like.shape
        if call.base in GATHERING:
            shape = (n * given[0], *given[1:]) if given else (n,)
        elif call.base in SCATTERING:
            shape = (given[0] // n, *given[1:]) if given and given[0] % n == 0 else shape
        else:
            shape = given
    return np.empty(shape, like.dtype)


def _list(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
