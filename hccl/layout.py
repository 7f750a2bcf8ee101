"""What each collective is, as data: buffers of every rank, where each begins in the vector, where results belong.

`count` is the vector's elements for all_reduce, broadcast and reduce, and one block's for the others; `splits` gives blocks of their own sizes: one
per rank, or for all_to_all and send_recv ranks × ranks, row = sender.

============== ============================ ============================ =============================================
collective     input                        output                       in place
============== ============================ ============================ =============================================
all_reduce     the vector                   the vector                   output is input
reduce         the vector                   the vector, at the root      output is input, at the root
broadcast      the vector, at the root      the vector                   output is input, at the root
reduce_scatter a block for every rank       its block                    output is the rank's block of the input
all_gather     its block                    a block of every rank        input is the rank's block of the output
barrier        a byte                       a byte of every rank         (as all_gather)
gather         its block                    a block of every rank, root  input is the root's block of the output, at the root
scatter        a block for every rank, root its block                    output is the root's block of the input, at the root
all_to_all     a block for every rank       a block of every rank        output is input
send_recv      a block for every rank       a block of every rank        never
============== ============================ ============================ =============================================

On the device every block begins at a multiple of 64 bytes (near-memory compute takes no other operand); the caller's arrays are dense. The *vector*
is what the ranks hold between them, in the same positions for all: the input of reducing collectives and of a scatter, the output of gathering ones,
every block of an all-to-all.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from golden.mem.memory import OPERAND_ALIGN
from hccl.errors import PlanError

REDUCING = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter", "all_to_all", "send_recv", "barrier")
SPLIT = ("reduce_scatter", "all_gather", "gather", "scatter", "all_to_all", "send_recv")  # those that take splits
MATRIX = ("all_to_all", "send_recv")


@dataclass(frozen=True, slots=True)
class Block:
    """`length` bytes: at `vector` in the vector, at `offset` in a buffer."""

    vector: int
    length: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Attributes:
    inputs, outputs: per rank, blocks of its buffers in order, those of no bytes included.
    alias: per rank, where its input begins in its output buffer (negative: how far the output begins in the input); None: apart.
    vector: blocks of the vector (start, length).
    reducing: an output is the reduction of all ranks' inputs.
    """

    inputs: tuple[tuple[Block, ...], ...]
    outputs: tuple[tuple[Block, ...], ...]
    alias: tuple[int | None, ...]
    vector: tuple[tuple[int, int], ...]
    reducing: bool

    def bytes(self, name: str, rank: int) -> int:
        """Size of "input" or "output" on the device."""
        blocks = self.inputs[rank] if name == "input" else self.outputs[rank]
        return max((b.offset + b.length for b in blocks if b.length), default=0)

    @property
    def size(self) -> int:
        return max((start + n for start, n in self.vector), default=0)


def pad(n: int) -> int:
    return -(-n // OPERAND_ALIGN) * OPERAND_ALIGN


def _place(lengths: list[int]) -> list[int]:
    return [0, *accumulate(map(pad, lengths))][: len(lengths)]


def lengths_of(collective: str, ranks: int, count: int, splits: tuple[int, ...], itemsize: int) -> list[int]:
    """Bytes of the blocks of the vector."""
    if collective == "barrier":
        return [itemsize] * ranks
    if collective not in SPLIT:
        return [count * itemsize]
    n = ranks * ranks if collective in MATRIX else ranks
    return [c * itemsize for c in (splits or (count,) * n)]


@lru_cache(maxsize=1024)
def layout(collective: str, ranks: int, count: int, itemsize: int, root: int, splits: tuple[int, ...], in_place: bool) -> Layout:
    """Raises: PlanError: splits or an in-place form that the collective does not have."""
    lengths = lengths_of(collective, ranks, count, splits, itemsize)
    at = _place(lengths)
    everyone = range(ranks)
    whole = tuple(Block(v, n, v) for v, n in zip(at, lengths, strict=True))
    own: list[tuple[Block, ...]] = []
    if len(lengths) == ranks:
        own = [(Block(at[r], lengths[r], 0),) for r in everyone]
    none: tuple[Block, ...] = ()

    def at_root(blocks: tuple[Block, ...]) -> list[tuple[Block, ...]]:
        return [blocks if r == root else none for r in everyone]

    alias: list[int | None] = [None] * ranks
    if collective in MATRIX:
        rows = [list(range(r * ranks, (r + 1) * ranks)) for r in everyone]
        columns = [list(range(r, ranks * ranks, ranks)) for r in everyone]
        inputs, outputs = ([
            tuple(Block(at[i], lengths[i], o) for i, o in zip(part, _place([lengths[i] for i in part]), strict=True)) for part in parts
        ] for parts in (rows, columns))  # fmt: skip
        if in_place:
            if any(lengths[s * ranks + d] != lengths[d * ranks + s] for s in everyone for d in range(s)):
                raise PlanError(f"{collective} in place with splits {splits}", "as much from s to d as from d to s, so that blocks change places")
            alias = [0] * ranks
    elif collective in ("all_reduce", "reduce", "broadcast"):
        inputs = at_root(whole) if collective == "broadcast" else [whole] * ranks
        outputs = at_root(whole) if collective == "reduce" else [whole] * ranks
        alias = [0 if collective == "all_reduce" or r == root else None for r in everyone]
    elif collective in ("reduce_scatter", "scatter"):
        inputs, outputs = [whole] * ranks if collective == "reduce_scatter" else at_root(whole), own
        alias = [-at[r] if collective == "reduce_scatter" or r == root else None for r in everyone]
    else:
        inputs, outputs = own, at_root(whole) if collective == "gather" else [whole] * ranks
        alias = [at[r] if collective != "gather" or r == root else None for r in everyone]
    if in_place and collective == "send_recv":
        raise PlanError("send_recv in place", "buffers of their own")
    return Layout(
        inputs=tuple(inputs), outputs=tuple(outputs), alias=tuple(alias) if in_place else (None,) * ranks,
        vector=tuple(zip(at, lengths, strict=True)), reducing=collective in REDUCING,
    )  # fmt: skip
