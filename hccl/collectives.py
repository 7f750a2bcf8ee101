"""The collectives of a communicator, called for all ranks at once: one array per rank.

All take `recvbufs` (where results go, any strides; None: new arrays in `Result.outputs`), `dtype` (needed where an array cannot say it: bfloat16 as uint16),
`in_place` (the result lies in the sendbufs: `hccl.layout` says where), `deadline`, `algorithm` and `groups` (`hccl.algorithms.table`). Reductions take `op`,
for premul_sum `factor` (one, or one per rank), and `fixed_order`: only algorithms whose bits do not depend on the count.

Raises: UsageError: an argument that cannot work. MismatchError: ranks differ. CollectiveError, CollectiveTimeout: it failed.
"""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from hccl.calls import Array
from hccl.result import Result

Arrays = Sequence[Array] | Array
Groups = Sequence[Sequence[int]] | None
Factor = float | Sequence[float] | None


class Collectives(ABC):
    nranks: int

    @abstractmethod
    def _collect(self, collective: str, sendbufs: Any, recvbufs: Any = None, **kw: Any) -> Result: ...

    def all_reduce(
        self, sendbufs: Arrays, recvbufs: Arrays | None = None, *, dtype: str | None = None, op: str = "sum", in_place: bool = False,
        factor: Factor = None, deadline: int | None = None, algorithm: str | None = None, groups: Groups = None, fixed_order: bool = False,
    ) -> Result:  # fmt: skip
        """Every rank gets the reduction of all `sendbufs`, element by element."""
        return self._collect("all_reduce", sendbufs, recvbufs, dtype=dtype, op=op, in_place=in_place, factor=factor, deadline=deadline,
                             algorithm=algorithm, groups=groups, fixed_order=fixed_order)  # fmt: skip

    def reduce(
        self, sendbufs: Arrays, recvbufs: Sequence[Array | None] | None = None, *, root: int = 0, dtype: str | None = None, op: str = "sum",
        in_place: bool = False, factor: Factor = None, deadline: int | None = None, algorithm: str | None = None, groups: Groups = None,
        fixed_order: bool = False,
    ) -> Result:  # fmt: skip
        """The root gets the reduction of all `sendbufs`."""
        return self._collect("reduce", sendbufs, recvbufs, root=root, dtype=dtype, op=op, in_place=in_place, factor=factor, deadline=deadline,
                             algorithm=algorithm, groups=groups, fixed_order=fixed_order)  # fmt: skip

    def reduce_scatter(
        self, sendbufs: Arrays, recvbufs: Arrays | None = None, *, dtype: str | None = None, op: str = "sum", in_place: bool = False,
        factor: Factor = None, deadline: int | None = None, algorithm: str | None = None, groups: Groups = None, fixed_order: bool = False,
    ) -> Result:  # fmt: skip
        """Rank r gets block r of the reduction; blocks are equal parts of the sendbufs."""
        return self._collect("reduce_scatter", sendbufs, recvbufs, dtype=dtype, op=op, in_place=in_place, factor=factor, deadline=deadline,
                             algorithm=algorithm, groups=groups, fixed_order=fixed_order)  # fmt: skip

    def reduce_scatter_v(
        self, sendbufs: Arrays, splits: Sequence[int], recvbufs: Arrays | None = None, *, dtype: str | None = None, op: str = "sum",
        in_place: bool = False, factor: Factor = None, deadline: int | None = None, algorithm: str | None = None, groups: Groups = None,
        fixed_order: bool = False,
    ) -> Result:  # fmt: skip
        """As reduce_scatter, block r of ``splits[r]`` elements."""
        return self._collect("reduce_scatter_v", sendbufs, recvbufs, splits=splits, dtype=dtype, op=op, in_place=in_place, factor=factor,
                             deadline=deadline, algorithm=algorithm, groups=groups, fixed_order=fixed_order)  # fmt: skip

    def all_gather(
        self, sendbufs: Arrays, recvbufs: Arrays | None = None, *, dtype: str | None = None, in_place: bool = False, deadline: int | None = None,
        algorithm: str | None = None, groups: Groups = None,
    ) -> Result:  # fmt: skip
        """Every rank gets all `sendbufs`, put together along the first dimension. In place, `sendbufs` are the whole, each rank's part in its place."""
        return self._collect("all_gather", sendbufs, recvbufs, dtype=dtype, in_place=in_place, deadline=deadline, algorithm=algorithm, groups=groups)

    def all_gather_v(
        self, sendbufs: Arrays, recvbufs: Arrays | None = None, *, splits: Sequence[int] | None = None, dtype: str | None = None,
        in_place: bool = False, deadline: int | None = None, algorithm: str | None = None, groups: Groups = None,
    ) -> Result:  # fmt: skip
        """As all_gather, of sendbufs of their own sizes; `splits` says the sizes, and is needed in place."""
        return self._collect("all_gather_v", sendbufs, recvbufs, splits=splits, dtype=dtype, in_place=in_place, deadline=deadline, algorithm=algorithm,
                             groups=groups)  # fmt: skip

    def broadcast(
        self, sendbufs: Sequence[Array | None] | Array, recvbufs: Arrays | None = None, *, root: int = 0, dtype: str | None = None,
        in_place: bool = False, deadline: int | None = None, algorithm: str | None = None, groups: Groups = None,
    ) -> Result:  # fmt: skip
        """Every rank gets the root's sendbuf; those of others may be None. In place, every sendbuf is where the result goes."""
        return self._collect("broadcast", sendbufs, recvbufs, root=root, dtype=dtype, in_place=in_place, deadline=deadline, algorithm=algorithm,
                             groups=groups)  # fmt: skip

    def gather(
        self, sendbufs: Arrays, recvbufs: Sequence[Array | None] | None = None, *, root: int = 0, dtype: str | None = None, in_place: bool = False,
        deadline: int | None = None, algorithm: str | None = None,
    ) -> Result:  # fmt: skip
        """The root gets all `sendbufs`, put together."""
        return self._collect("gather", sendbufs, recvbufs, root=root, dtype=dtype, in_place=in_place, deadline=deadline, algorithm=algorithm)

    def gather_v(
        self, sendbufs: Arrays, recvbufs: Sequence[Array | None] | None = None, *, root: int = 0, splits: Sequence[int] | None = None,
        dtype: str | None = None, in_place: bool = False, deadline: int | None = None, algorithm: str | None = None,
    ) -> Result:  # fmt: skip
        """As gather, of sendbufs of their own sizes."""
        return self._collect("gather_v", sendbufs, recvbufs, root=root, splits=splits, dtype=dtype, in_place=in_place, deadline=deadline,
                             algorithm=algorithm)  # fmt: skip

    def scatter(
        self, sendbufs: Sequence[Array | None] | Array, recvbufs: Sequence[Array | None] | None = None, *, root: int = 0, dtype: str | None = None,
        in_place: bool = False, deadline: int | None = None, algorithm: str | None = None,
    ) -> Result:  # fmt: skip
        """Rank r gets block r of the root's sendbuf; those of others may be None."""
        return self._collect("scatter", sendbufs, recvbufs, root=root, dtype=dtype, in_place=in_place, deadline=deadline, algorithm=algorithm)

    def scatter_v(
        self, sendbufs: Sequence[Array | None] | Array, splits: Sequence[int], recvbufs: Sequence[Array | None] | None = None, *, root: int = 0,
        dtype: str | None = None, in_place: bool = False, deadline: int | None = None, algorithm: str | None = None,
    ) -> Result:  # fmt: skip
        """As scatter, block r of ``splits[r]`` elements."""
        return self._collect("scatter_v", sendbufs, recvbufs, root=root, splits=splits, dtype=dtype, in_place=in_place, deadline=deadline,
                             algorithm=algorithm)  # fmt: skip

    def all_to_all(
        self, sendbufs: Arrays, recvbufs: Arrays | None = None, *, dtype: str | None = None, in_place: bool = False, deadline: int | None = None,
        algorithm: str | None = None,
    ) -> Result:  # fmt: skip
        """Block d of rank s becomes block s of rank d."""
        return self._collect("all_to_all", sendbufs, recvbufs, dtype=dtype, in_place=in_place, deadline=deadline, algorithm=algorithm)

    def all_to_all_v(
        self, sendbufs: Arrays, send_splits: Sequence[Sequence[int]], recvbufs: Arrays | None = None, *,
        recv_splits: Sequence[Sequence[int]] | None = None, dtype: str | None = None, in_place: bool = False, deadline: int | None = None,
        algorithm: str | None = None,
    ) -> Result:  # fmt: skip
        """As all_to_all, rank s giving ``send_splits[s][d]`` elements to rank d; `recv_splits`, if given, must say the same."""
        return self._collect("all_to_all_v", sendbufs, recvbufs, per_rank={"send_splits": send_splits, "recv_splits": recv_splits}, dtype=dtype,
                             in_place=in_place, deadline=deadline, algorithm=algorithm)  # fmt: skip

    def barrier(self, *, deadline: int | None = None, algorithm: str | None = None) -> Result:
        """No rank is past it before all have come to it."""
        return self._collect("barrier", [None] * self.nranks, deadline=deadline, algorithm=algorithm)
