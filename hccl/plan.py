"""A collective as data: per rank and channel, the ordered chunk operations that carry it out.

A channel is one work queue of a rank's message engine. Its operations issue in list order and do not block: an operation
issues when the one before it has issued and everything in its `deps` is done. `send` is done when the peer has the data,
`recv` when the data is in memory, `reduce` and `copy` when the result is. The i-th send of a rank to a peer on a channel
meets the i-th recv of that peer from the rank on the same channel.

Offsets and lengths are bytes; what the buffers of a collective hold, and where they coincide with `in_place`, says `hccl.layout`. Scratch begins
with the slots of the channels, `slots` of `slot_bytes` each: slot `k` of channel `c` starts at ``(c * slots + k) * slot_bytes``. Behind
them are `work_bytes` for whatever else the algorithm keeps.
"""
from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from hccl.dtypes import DTYPES, OPS, engine_of
from hccl.errors import PlanError
from hccl.layout import MATRIX, Layout, layout, lengths_of

__all__ = ["BUFFERS", "DTYPES", "KINDS", "OPS", "VERSION", "ChunkOp", "Plan", "Ref"]
KINDS = ("send", "recv", "reduce", "copy", "scale")
BUFFERS = ("input", "output", "scratch")
VERSION = 1

Kind = Literal["send", "recv", "reduce", "copy", "scale"]


@dataclass(frozen=True, slots=True)
class Ref:
    """A place: byte `offset` in `buffer`."""

    buffer: str
    offset: int

    def __str__(self) -> str:
        return f"{self.buffer}+{self.offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkOp:
    """One operation.

    =======  ==================  ==========================
    kind     reads               writes
    =======  ==================  ==========================
    send     `a`, to `peer`
    recv                         `d`, from `peer`
    reduce   `a` and `b`         `d` = `a` op `b`
    copy     `a`                 `d`
    scale    `a`                 `d` = `a` times the rank's factor (premul_sum)
    =======  ==================  ==========================

    `chunk` and `slice` say which part of the vector it carries (both ends of a message must agree), `step` the algorithm's
    step, `slot` the scratch slot it uses, `scale` that the result of the reduce is the average's last sum: it is divided by the number of ranks.
    """

    kind: Kind
    length: int
    peer: int | None = None
    a: Ref | None = None
    b: Ref | None = None
    d: Ref | None = None
    chunk: int = 0
    slice: int = 0
    step: int = 0
    slot: int | None = None
    scale: bool = False
    deps: tuple[int, ...] = ()

    def reads(self) -> tuple[Ref, ...]:
        return tuple(r for r in (self.a, self.b) if r is not None)

    def __str__(self) -> str:
        peer = "" if self.peer is None else f" {'to' if self.kind == 'send' else 'from'} rank {self.peer}"
        return f"{self.kind} of chunk {self.chunk} slice {self.slice} ({self.length} bytes, step {self.step}){peer}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A whole collective.

    Args:
        collective, algorithm, op, dtype, count, ranks, in_place, root, splits: what is computed (`hccl.layout`).
        order: the order of reduction, in words.
        groups: of a hierarchical algorithm: the ranks of each group.
        channels: work queues used; every rank has this many lists in `programs`.
        slots, slot_bytes, work_bytes: scratch.
        window: operations of a queue that may be issued and not retired (in order), recvs posted ahead included.
        rq_depth, sq_depth: receives and sends that may be outstanding on a queue pair.
        programs: ``programs[rank][channel]``, the ordered operations.
    """

    collective: str
    algorithm: str
    op: str
    dtype: str
    count: int
    ranks: int
    in_place: bool = False
    root: int = 0
    splits: tuple[int, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()
    order: str = ""
    channels: int = 1
    slots: int = 0
    slot_bytes: int = 0
    work_bytes: int = 0
    window: int = 32
    rq_depth: int = 32
    sq_depth: int = 32
    programs: tuple[tuple[tuple[ChunkOp, ...], ...], ...] = field(default=())

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype].size

    @cached_property
    def layout(self) -> Layout:
        """Raises: PlanError: splits or an in-place form that the collective does not have."""
        return layout(self.collective, self.ranks, self.count, self.itemsize, self.root, self.splits, self.in_place)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the vector; of an all-to-all: of the largest input of a rank."""
        lengths = lengths_of(self.collective, self.ranks, self.count, self.splits, self.itemsize)
        if self.collective in MATRIX:
            return max(sum(lengths[r * self.ranks : (r + 1) * self.ranks]) for r in range(self.ranks))
        return sum(lengths)

    @property
    def scratch_bytes(self) -> int:
        return self.channels * self.slots * self.slot_bytes + self.work_bytes

    def buffer_bytes(self, name: str, rank: int) -> int:
        return self.scratch_bytes if name == "scratch" else self.layout.bytes(name, rank)

    def on_host(self, op: ChunkOp) -> bool:
        """It is arithmetic that near-memory compute does not have."""
        return op.kind in ("reduce", "scale") and engine_of(self.dtype, self.op, op.scale or op.kind == "scale") is None

    @cached_property
    def host_ops(self) -> int:
        return sum(self.on_host(o) for p in self.programs for ops in p for o in ops)

    def slot_offset(self, channel: int, slot: int) -> int:
        return (channel * self.slots + slot) * self.slot_bytes

    def summary(self) -> list[dict[str, int]]:
        """Per rank: operations of each kind, bytes sent."""
        rows = []
        for rank, program in enumerate(self.programs):
            row = {"rank": rank, **dict.fromkeys(KINDS, 0), "sent_bytes": 0}
            for ops in program:
                for o in ops:
                    row[o.kind] += 1
                    row["sent_bytes"] += o.length if o.kind == "send" else 0
            rows.append(row)
        return rows

    def messages(self, rank: int) -> list[int]:
        """Bytes of every message `rank` sends."""
        return [o.length for ops in self.programs[rank] for o in ops if o.kind == "send"]

    # -- JSON ---------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        head = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "programs"}
        head |= {"splits": list(self.splits), "groups": [list(g) for g in self.groups]}
        return {"version": VERSION, **head, "programs": [[[_op_dict(o) for o in ops] for ops in p] for p in self.programs]}

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    @classmethod
    def from_dict(cls, data: Any) -> Plan:
        """Raises: PlanError: unknown or missing keys, wrong types, an unknown version."""
        data = dict(_want(data, dict, "the plan"))
        version = data.pop("version", None)
        if version != VERSION:
            raise PlanError(f"plan version {version!r}", f"{VERSION}")
        _check_keys(cls, data, "the plan")
        programs = []
        for rank, program in enumerate(_want(data.pop("programs"), list, "programs")):
            lists = []
            for channel, ops in enumerate(_want(program, list, f"programs[{rank}]")):
                where = f"programs[{rank}][{channel}]"
                lists.append(tuple(_op_from(o, f"{where}[{i}]") for i, o in enumerate(_want(ops, list, where))))
            programs.append(tuple(lists))
        kinds = {"collective": str, "algorithm": str, "op": str, "dtype": str, "order": str, "in_place": bool, "splits": list, "groups": list}
        for name, value in data.items():
            _want(value, kinds.get(name, int), name)
        data["splits"] = tuple(_want(n, int, "splits") for n in data.get("splits", []))
        data["groups"] = tuple(tuple(_want(r, int, "groups") for r in _want(g, list, "groups")) for g in data.get("groups", []))
        return cls(**data, programs=tuple(programs))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        try:
            data = json.loads(text)
        except json.JSONDecodeError as e:
            raise PlanError(f"not JSON: {e}", "a plan written by Plan.to_json") from None
        return cls.from_dict(data)


def _want(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise PlanError(f"{where} is {type(value).__name__} {value!r:.40}", f"{kind.__name__}")
    return value


def _check_keys(cls: type, data: dict[str, Any], where: str) -> None:
    fields = dataclasses.fields(cls)
    known = [f.name for f in fields]
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise PlanError(f"{where} has unknown key(s) {', '.join(unknown)}", f"only {', '.join(known)}")
    needed = {f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING}
    missing = sorted((needed | ({"programs"} if cls is Plan else set())) - set(data))
    if missing:
        raise PlanError(f"{where} lacks key(s) {', '.join(missing)}", f"at least {', '.join(sorted(needed))}")


_OP_DEFAULTS = {
    f.name: f.default for f in dataclasses.fields(ChunkOp) if f.default is not dataclasses.MISSING
}


def _op_dict(o: ChunkOp) -> dict[str, Any]:
    """Fields that differ from their defaults; a place as ``[buffer, offset]``."""
    out: dict[str, Any] = {"kind": o.kind, "length": o.length}
    for name, default in _OP_DEFAULTS.items():
        value = getattr(o, name)
        if value != default:
            out[name] = [value.buffer, value.offset] if isinstance(value, Ref) else (
                list(value) if isinstance(value, tuple) else value
            )
    return out


def _op_from(data: Any, where: str) -> ChunkOp:
    data = dict(_want(data, dict, where))
    _check_keys(ChunkOp, data, where)
    if data["kind"] not in KINDS:
        raise PlanError(f"{where} has kind {data['kind']!r}", f"one of {', '.join(KINDS)}")
    for name, value in data.items():
        at = f"{where}.{name}"
        if name in ("a", "b", "d"):
            pair = _want(value, list, at)
            if len(pair) != 2:
                raise PlanError(f"{at} is {value!r}", "[buffer, offset]")
            data[name] = Ref(_want(pair[0], str, at), _want(pair[1], int, at))
        elif name == "deps":
            data[name] = tuple(_want(v, int, at) for v in _want(value, list, at))
        elif name == "scale":
            _want(value, bool, at)
        elif name != "kind":
            _want(value, int, at)
    return ChunkOp(**data)
