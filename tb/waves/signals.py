"""What a waveform view of a bench shows: clock and reset, every port with its payload's fields, the block's state machines.

Names are those of the trace (``tb_top.request__payload``); a field is a bit range of its payload, from the block's own layout; the
names of an enumeration come from `spec` through the field's documentation ("DType", "wqe.Status"), or from the layout.
"""
from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, EnumMeta
from functools import lru_cache
from typing import Any

from amaranth.hdl import Fragment, Instance, Shape, Signal, unsigned
from amaranth.lib import data, stream
from amaranth.lib import enum as amaranth_enum

import spec.convert
import spec.dma
import spec.interfaces
import spec.isa
import spec.layout_unit
import spec.packet
import spec.pe
import spec.sfu
import spec.wqe
from rtl.chip.station import Station
from rtl.common.axi4 import AXI4LiteSignature, AXI4Signature, Burst, Resp
from rtl.emit import _Platform
from rtl.mem.nmc import NearMemoryCompute
from rtl.nic.message_engine import MessageEngine
from rtl.nic.nic import Nic
from spec.fields import Record
from spec.params import SystemParams
from tb.lib.ports import TopPort
from tb.lib.top import walk

SPECS = (spec.wqe, spec.packet, spec.interfaces, spec.pe, spec.dma, spec.isa, spec.layout_unit)  # with records or enumerations
Names = tuple[tuple[int, str], ...]
MAX_ITEMS = 16  # of an array that are listed one by one


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line: bits ``lsb .. lsb+bits-1`` of a signal of `width` bits. `names`: texts of its values; `enum`: what they belong to."""

    label: str
    signal: str
    width: int
    lsb: int = 0
    bits: int = 0
    enum: str = ""
    names: Names = ()

    @property
    def whole(self) -> bool:
        return self.bits == self.width

    def of(self, value: int) -> int:
        """This row's bits of the signal's value."""
        return value >> self.lsb & (1 << self.bits) - 1


def row(label: str, signal: str, width: int, **more: Any) -> Row:
    return Row(label=label, signal=signal, width=width, **{"bits": width, **more})


@dataclass(frozen=True, kw_only=True)
class Group:
    """Rows that belong together; a stream has `valid` and `ready`."""

    title: str
    rows: tuple[Row, ...]
    valid: Row | None = None
    ready: Row | None = None

    @property
    def all_rows(self) -> tuple[Row, ...]:
        return (*(r for r in (self.valid, self.ready) if r), *self.rows)


@dataclass(frozen=True, kw_only=True)
class View:
    """Everything to show of one trace."""

    clock: Row
    reset: Row
    groups: tuple[Group, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def rows(self) -> list[Row]:
        return [self.clock, self.reset, *(r for g in self.groups for r in g.all_rows)]


def _enum_names(cls: EnumMeta) -> Names:
    return tuple((int(e.value), e.name) for e in cls)  # type: ignore[attr-defined]


@lru_cache
def _documented() -> dict[tuple[tuple[str, int], ...], dict[str, tuple[str, Names]]]:
    """Fields (name, width) of every record of `spec` -> its enumerations by field name."""
    out = {}
    for module in SPECS:
        for record in vars(module).values():
            if isinstance(record, Record):
                found = {}
                for f in record.fields:
                    cls = _named(f.doc)
                    if cls is not None:
                        found[f.name] = (cls.__name__, _enum_names(cls))
                out[tuple((f.name, f.width) for f in record.fields)] = found
    return out


def _known(items: list[tuple[Any, Any]]) -> dict[str, tuple[str, Names]]:
    """Enumerations of a structure's fields: of the record of `spec` that it is, or of a beat of the special function unit."""
    widths = tuple((k, Shape.cast(f.shape).width) for k, f in items)
    if set(spec.sfu.CONTROL) <= set(widths):
        kinds = {"op": spec.sfu.SfuOp, **dict.fromkeys(("format_a", "format_b", "format_out"), spec.convert.ConvertFormat)}
        return {k: (e.__name__, _enum_names(e)) for k, e in kinds.items()}
    return _documented().get(widths, {})


def _instruction(items: list[tuple[Any, Any]], signal: str, width: int, lsb: int, name: str) -> Row | None:
    """What an instruction does, by name: `op` means something only together with the unit below it."""
    at = dict(items)
    if not {"unit", "op"} <= set(at) or at["op"].offset != at["unit"].offset + at["unit"].width:
        return None
    names = tuple((unit | op << at["unit"].width, texts[op].upper() if op < len(texts) else str(op))
                  for unit, texts in spec.isa.OPS.items() for op in range(1 << at["op"].width))
    return Row(label=name, signal=signal, width=width, lsb=lsb + at["unit"].offset, bits=at["unit"].width + at["op"].width, enum="Instruction", names=names)


def _named(doc: str) -> EnumMeta | None:
    """The enumeration of `spec` that a field's documentation begins with."""
    match = re.match(r"(?:wqe\.|packet\.)?([A-Z]\w+)", doc)
    for module in SPECS:
        cls = getattr(module, match.group(1), None) if match else None
        if isinstance(cls, EnumMeta):
            return cls
    return None


_BY_NAME = {("resp", 2): Resp, ("burst", 2): Burst, ("dtype", 2): spec.wqe.DType, ("rop", 2): spec.wqe.ReduceOp}


def fields(shape: Any, signal: str, width: int, lsb: int = 0, prefix: str = "") -> Iterator[Row]:
    """Rows of a payload: its fields by name, nested ones joined with dots; reserved fields (``_``) are left out."""
    if not isinstance(shape, data.Layout):
        yield _leaf(prefix or "payload", shape, signal, width, lsb, None)
        return
    items = list(shape)
    known: dict[str, tuple[str, Names]] = {}
    if isinstance(shape, data.StructLayout):
        known = _known(items)
    if isinstance(shape, data.ArrayLayout) and len(items) > MAX_ITEMS:
        yield _leaf(prefix or "payload", Shape.cast(shape), signal, width, lsb, None)
        return
    for key, f in items:
        if str(key).startswith("_") or not f.width:
            continue
        name = f"{prefix}[{key}]" if isinstance(key, int) else f"{prefix}.{key}" if prefix else str(key)
        if key == "values" and not f.width % 32 and 1 < f.width // 32 <= MAX_ITEMS:  # a result row: 32 bits each, whatever the format
            yield from fields(data.ArrayLayout(32, f.width // 32), signal, width, lsb + f.offset, name)
        elif isinstance(f.shape, data.Layout):
            yield from fields(f.shape, signal, width, lsb + f.offset, name)
        elif key == "op" and (what := _instruction(items, signal, width, lsb, name)) is not None:
            yield what
        else:
            yield _leaf(name, f.shape, signal, width, lsb + f.offset, known.get(str(key)))


def _leaf(name: str, shape: Any, signal: str, width: int, lsb: int, known: tuple[str, Names] | None) -> Row:
    bits = Shape.cast(shape).width
    r = Row(label=name, signal=signal, width=width, lsb=lsb, bits=bits)
    if isinstance(shape, EnumMeta | amaranth_enum.EnumType) and issubclass(shape, Enum):
        return replace(r, enum=shape.__name__, names=_enum_names(shape))
    cls = _BY_NAME.get((name.rpartition(".")[2], bits))
    if known is None and cls is not None:
        known = (cls.__name__, _enum_names(cls))
    return replace(r, enum=known[0], names=known[1]) if known else r


def _stream(title: str, signal: str, shape: Any) -> Group:
    width = Shape.cast(shape).width
    return Group(
        title=title, valid=row("valid", f"{signal}__valid", 1), ready=row("ready", f"{signal}__ready", 1),
        rows=tuple(fields(shape, f"{signal}__payload", width)) if width else (),
    )


def port_groups(block: Any, ports: list[TopPort], top: str = "tb_top") -> list[Group]:
    """Groups of every port of the bench's top around `block`."""
    kinds = {p.name: p.kind for p in ports}
    groups: list[Group] = []
    pins: list[Row] = []
    for path, what, _ in walk(block.signature):
        at = f"{top}.{path}"
        if isinstance(what, stream.Signature):
            groups.append(_stream(path.replace("__", "."), at, what.members["payload"].shape))
        elif isinstance(what, AXI4Signature | AXI4LiteSignature):
            for c, m in what.members.items():
                shape, title = m.signature.members["payload"].shape, f"{path.replace('__', '.')}.{c}"
                if kinds.get(path) not in ("axi", "axil"):
                    groups.append(_stream(title, f"{at}__{c}", shape))
                    continue
                rows = tuple(replace(r, signal=f"{at}_{c}{r.label}", width=r.bits, lsb=0) for r in fields(shape, at, 1))
                groups.append(Group(title=title, rows=rows, valid=row("valid", f"{at}_{c}valid", 1), ready=row("ready", f"{at}_{c}ready", 1)))
        elif Shape.cast(what).width:
            width = Shape.cast(what).width
            inner = list(fields(what, at, width, prefix=path)) if isinstance(what, data.Layout) else [_leaf(path, what, at, width, 0, None)]
            pins += inner
    buses, pins = _channels(pins)
    groups += buses
    if pins:
        groups.append(Group(title="pins", rows=tuple(pins)))
    return groups


def _channels(pins: list[Row]) -> tuple[list[Group], list[Row]]:
    """Channels of buses whose ports are plain pins (``bus_awvalid``, ``bus_awready``, ``bus_awaddr``), and the pins left."""
    by_name = {r.label: r for r in pins}
    groups, used = [], set()
    for name, valid in by_name.items():
        match = re.fullmatch(r"(\w+)_(aw|w|b|ar|r)valid", name)
        ready = by_name.get(f"{name[:-5]}ready")
        if match is None or ready is None:
            continue
        at = name[:-5]
        rest = [r for n, r in by_name.items() if re.fullmatch(at + r"[a-z]+", n) and n not in used and r not in (valid, ready)]
        rows = tuple(_leaf(r.label[len(at):], unsigned(r.bits), r.signal, r.width, r.lsb, None) for r in rest)
        groups.append(Group(title=f"{match[1]}.{match[2]}", valid=valid, ready=ready, rows=rows))
        used |= {name, ready.label, *(r.label for r in rest)}
    return groups, [r for r in pins if r.label not in used]


def state_machines(block: Any, top: str = "tb_top.dut") -> list[Row]:
    """State registers of every ``m.FSM()`` of the block, with the names of their states."""
    platform = _Platform()
    fragments = {"": Fragment.get(block, platform)}
    while platform.pending:
        name, child = platform.pending.pop(0)
        fragments[name] = Fragment.get(child, platform)
    return list(_machines(fragments[""], top, top, fragments))


def _machines(fragment: Any, path: str, root: str, shared: dict[str, Any]) -> Iterator[Row]:
    found: dict[int, Signal] = {}
    for statements in getattr(fragment, "statements", {}).values():
        for s in statements:
            found.update((id(x), x) for x in s._lhs_signals() if x.name.endswith("_state"))
    for s in found.values():
        if callable(getattr(s, "decoder", None)) and s.shape().width:
            names = []
            for v in range(1 << s.shape().width):
                try:
                    names.append((v, str(s.decoder(v)).rpartition("/")[0]))
                except KeyError:  # an unused code
                    break
            label = f"{path}.{s.name}"[len(root) + 1 :]
            enum = re.sub(r"\W", "_", label)
            yield Row(label=label, signal=f"{path}.{s.name}", width=s.shape().width, bits=s.shape().width, enum=enum, names=tuple(names))
    for i, (child, name, _) in enumerate(getattr(fragment, "subfragments", ())):
        below = f"{path}.{name or f'U${i}'}"
        if isinstance(child, Instance):
            if child.type in shared:
                yield from _machines(shared[child.type], below, root, shared)
        else:
            yield from _machines(child, below, root, shared)


def bench_view(block: Any, ports: list[TopPort], known: dict[str, int]) -> View:
    """View of a bench's trace. `known`: width of every signal of the trace; rows whose signals are not there are left out, with a note."""
    groups = port_groups(block, ports)
    machines = state_machines(block)
    if machines:
        groups.append(Group(title="state machines", rows=tuple(machines)))
    return _present(row("clk", "tb_top.clk", 1), row("rst", "tb_top.rst", 1), groups, known)


def system_view(p: SystemParams, known: dict[str, int]) -> View:
    """View of a whole system's trace (`SimService(waves=...)`): per node the streams between its parts, its links, its state machines."""
    groups: list[Group] = []
    for i in range(p.nodes):
        station = f"node{i}.Station"
        parts = {"me": MessageEngine(p.node.me, p.node.mem), "nic": Nic(p.node.nic, p.node.mem), "nmc": NearMemoryCompute(p.node.nmc, p.node.mem)}
        for name, block in parts.items():
            block._MustUse__silence = True  # only its ports are wanted
            streams = [g for g in port_groups(block, [], f"{station}.node.{name}") if g.valid]
            streams = [g for g in streams if name == "me" or g.title not in ("request", "done")]  # shown at the message engine
            groups += [replace(g, title=f"node{i}.{name}.{g.title}") for g in streams]
        machines = state_machines(Station(p.replace(nodes=1)), station)
        if machines:
            groups.append(Group(title=f"node{i} state machines", rows=tuple(machines)))
    return _present(row("clk", "node0.clk", 1), row("rst", "node0.rst", 1), groups, known)


def _present(clock: Row, reset: Row, groups: list[Group], known: dict[str, int]) -> View:
    missing: dict[str, None] = {}

    def there(r: Row | None) -> bool:
        if r is not None and known.get(r.signal) != r.width:
            missing[r.signal] = None
            return False
        return r is not None

    kept = []
    for g in groups:
        kept.append(replace(
            g, rows=tuple(r for r in g.rows if there(r)), valid=g.valid if there(g.valid) else None, ready=g.ready if there(g.ready) else None,
        ))
    if not there(clock) or not there(reset):
        raise ValueError(f"the trace has no {clock.signal} and {reset.signal}")
    notes = (f"{len(missing)} signal(s) are not in the trace (unused ones are optimised away), first {next(iter(missing))}",) if missing else ()
    return View(clock=clock, reset=reset, groups=tuple(g for g in kept if g.all_rows), notes=notes)
