"""Sizes of every block: frozen, keyword-only, validated; named configurations; JSON round trip.

`tiny` is what multi-chip simulation uses; `small` is larger in every queue; `mtia300` takes the sizes published for the real chip
where they are known (16 message engines share 1,024 queue pairs a NIC block; one engine is modelled).
"""
from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, TypeVar

from spec.packet import MTUS

T = TypeVar("T", bound="Params")


class Params:
    """Base: JSON round trip with unknown keys refused, and range checks that say what was expected."""

    def replace(self: T, **kw: Any) -> T:
        return dataclasses.replace(self, **kw)  # type: ignore[type-var]

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)  # type: ignore[call-overload]

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1, sort_keys=True)

    @classmethod
    def from_dict(cls: type[T], data: dict[str, Any]) -> T:
        if not isinstance(data, dict):
            raise ValueError(f"{cls.__name__}: {data!r}; expected an object of names and values")
        known = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        unknown = sorted(set(data) - set(known))
        if unknown:
            raise ValueError(f"{cls.__name__}: unknown key(s) {', '.join(unknown)}; known: {', '.join(known)}")
        kw = {}
        for name, value in data.items():
            kind = known[name].default_factory
            if isinstance(kind, type) and issubclass(kind, Params) and isinstance(value, dict):
                value = kind.from_dict(value)
            kw[name] = value
        return cls(**kw)

    @classmethod
    def from_json(cls: type[T], text: str) -> T:
        return cls.from_dict(json.loads(text))

    def _groups(self) -> None:
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            kind, value = f.default_factory, getattr(self, f.name)
            if isinstance(kind, type) and not isinstance(value, kind):
                raise ValueError(f"{type(self).__name__}.{f.name} = {value!r}: expected an object of {kind.__name__}")

    def _range(self, name: str, low: int, high: int, *, pow2: bool = False) -> None:
        v = getattr(self, name)
        if not isinstance(v, int) or isinstance(v, bool) or not low <= v <= high or (pow2 and v & (v - 1)):
            kind = "a power of two" if pow2 else "an integer"
            raise ValueError(f"{type(self).__name__}.{name} = {v!r}: expected {kind} from {low} to {high}")


@dataclass(frozen=True, kw_only=True)
class MemParams(Params):
    """On-chip memory: `banks` interleaved at `data_bytes`, each one read and one write a cycle."""

    data_bytes: int = 64
    addr_width: int = 32
    size_bytes: int = 4 << 20
    banks: int = 4
    id_width: int = 4

    def __post_init__(self) -> None:
        self._range("data_bytes", 64, 64)
        self._range("addr_width", 16, 64)
        self._range("size_bytes", 4096, 1 << 40, pow2=True)
        self._range("banks", 1, 64, pow2=True)
        self._range("id_width", 1, 16)
        if self.size_bytes > 1 << self.addr_width:
            raise ValueError(f"MemParams.size_bytes = {self.size_bytes} does not fit in {self.addr_width} address bits")


@dataclass(frozen=True, kw_only=True)
class NmcParams(Params):
    """Near-memory compute: bytes of each operand a cycle, jobs that may be queued."""

    width: int = 64
    queue: int = 4

    def __post_init__(self) -> None:
        self._range("width", 64, 64)
        self._range("queue", 1, 64, pow2=True)


@dataclass(frozen=True, kw_only=True)
class MeParams(Params):
    """Message engine: work queues, WQEs tracked per queue, cycles between polls of a WAIT."""

    queues: int = 4
    window: int = 32
    prefetch: int = 4
    poll_interval: int = 16

    def __post_init__(self) -> None:
        self._range("queues", 1, 64, pow2=True)
        self._range("window", 2, 256, pow2=True)
        self._range("prefetch", 1, 16, pow2=True)
        self._range("poll_interval", 4, 4096)


@dataclass(frozen=True, kw_only=True)
class NicParams(Params):
    """NIC: queue pairs, memory regions, depth of send and receive queues per QP, packet sizes, timers (cycles)."""

    qps: int = 16
    mrs: int = 16
    sq_depth: int = 32
    rq_depth: int = 32
    mtu: int = 4096
    window: int = 64  # unacknowledged packets per QP
    ack_every: int = 4  # packets per coalesced ACK inside a message; its last packet always asks for one
    timeout: int = 4096  # cycles without progress before a retransmission
    retries: int = 7
    rnr_timer: int = 512  # cycles of a unit of the RNR timer (the standard's 0.01 ms): what a sender waits after an RNR NAK of code 1
    rnr_retries: int = 7
    rnr_code: int = 1  # timer field of the RNR NAKs sent (spec.packet.RNR_UNITS)
    rx_buffer_flits: int = 512

    def __post_init__(self) -> None:
        for name in ("qps", "sq_depth", "rq_depth", "window", "rx_buffer_flits"):
            self._range(name, 2, 1 << 16, pow2=True)
        self._range("mrs", 2, 512, pow2=True)  # what the register map has room for
        if self.mtu not in MTUS:
            raise ValueError(f"NicParams.mtu = {self.mtu!r}: expected one of {MTUS}")
        self._range("ack_every", 1, 1024)
        self._range("timeout", 16, 1 << 24)
        self._range("retries", 0, 7)
        self._range("rnr_timer", 1, 1 << 24)
        self._range("rnr_retries", 0, 7)
        self._range("rnr_code", 0, 31)
        if self.rx_buffer_flits * 64 < 2 * (self.mtu + 128):
            raise ValueError(
                f"NicParams.rx_buffer_flits = {self.rx_buffer_flits}: expected room for two packets of {self.mtu} B"
            )


@dataclass(frozen=True, kw_only=True)
class LinkParams(Params):
    """Link: one-way latency in cycles, line rate in bytes a cycle."""

    latency: int = 100
    rate: int = 64
    depth: int = 16  # flits the receiver may hold beyond those in flight

    def __post_init__(self) -> None:
        self._range("latency", 1, 4096)
        self._range("rate", 1, 64)
        self._range("depth", 2, 4096)


@dataclass(frozen=True, kw_only=True)
class SwitchParams(Params):
    """Output-queued switch: flits of buffer per output."""

    ports: int = 4
    buffer_flits: int = 512

    def __post_init__(self) -> None:
        self._range("ports", 1, 64)
        self._range("buffer_flits", 128, 1 << 16, pow2=True)


@dataclass(frozen=True, kw_only=True)
class PeParams(Params):
    """Compute engines of a processing element. A K-chunk is 64 bytes in every configuration, so results never depend on these sizes."""

    rows: int = 4  # rows the dot-product engine holds: results a cycle
    banks: int = 2  # accumulator banks of the reduction engine
    depth: int = 64  # result rows in a bank
    lanes: int = 4  # elements a cycle of the special function unit
    local_bytes: int = 64 << 10  # local memory
    local_banks: int = 4  # of the local memory, rows of 64 bytes interleaved; one access a cycle each
    ecc: bool = False  # of the local memory: single errors corrected, double ones detected
    dma_depth: int = 16  # reads and writes the DMA engine keeps in flight, in bursts
    queue: int = 4  # instructions that wait for a unit, and as many that it works on
    deadline: int = 1 << 14  # cycles without progress after which the command processor gives up

    def __post_init__(self) -> None:
        self._range("rows", 1, 64, pow2=True)
        self._range("banks", 2, 16, pow2=True)
        self._range("depth", 2, 1 << 12, pow2=True)
        self._range("lanes", 1, 64, pow2=True)
        self._range("local_bytes", 4096, 16 << 20, pow2=True)
        self._range("local_banks", 1, 64, pow2=True)
        if not isinstance(self.ecc, bool):
            raise ValueError(f"PeParams.ecc = {self.ecc!r}: expected true or false")
        self._range("dma_depth", 1, 64, pow2=True)
        self._range("queue", 2, 16, pow2=True)
        self._range("deadline", 64, 1 << 24)


@dataclass(frozen=True, kw_only=True)
class NodeParams(Params):
    """A node: processing element, memory, near-memory compute, message engine, NIC."""

    pe: PeParams = field(default_factory=PeParams)
    mem: MemParams = field(default_factory=MemParams)
    nmc: NmcParams = field(default_factory=NmcParams)
    me: MeParams = field(default_factory=MeParams)
    nic: NicParams = field(default_factory=NicParams)

    def __post_init__(self) -> None:
        self._groups()


@dataclass(frozen=True, kw_only=True)
class SystemParams(Params):
    """`nodes` nodes on one switch, each by one full-duplex link."""

    nodes: int = 4
    node: NodeParams = field(default_factory=NodeParams)
    link: LinkParams = field(default_factory=LinkParams)
    switch: SwitchParams = field(default_factory=SwitchParams)

    def __post_init__(self) -> None:
        self._groups()
        self._range("nodes", 1, 64)


CONFIGS: dict[str, SystemParams] = {
    "tiny": SystemParams(),
    "small": SystemParams(
        nodes=8,
        node=NodeParams(
            pe=PeParams(rows=8, depth=128, lanes=8, local_bytes=256 << 10, local_banks=16),
            mem=MemParams(size_bytes=16 << 20, banks=8),
            me=MeParams(queues=8, window=64),
            nic=NicParams(qps=64, mrs=64, sq_depth=64, rq_depth=64),
        ),
        switch=SwitchParams(ports=8),
    ),
    "mtia300": SystemParams(
        nodes=16,
        node=NodeParams(
            pe=PeParams(rows=32, banks=4, depth=256, lanes=32, local_bytes=512 << 10, local_banks=16, ecc=True, dma_depth=32),
            mem=MemParams(size_bytes=256 << 20, banks=16, addr_width=40),
            me=MeParams(queues=16, window=128),
            nic=NicParams(qps=1024, mrs=256, sq_depth=32, rq_depth=32),
        ),
        switch=SwitchParams(ports=16),
    ),
}


def config(name: str) -> SystemParams:
    """The named configuration.

    Raises:
        ValueError: no such name; the message lists them.
    """
    if name not in CONFIGS:
        raise ValueError(f"unknown configuration {name!r}; known: {', '.join(CONFIGS)}")
    return CONFIGS[name]
