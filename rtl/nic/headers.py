"""Protocol headers as bytes on the link: fields of the `spec.packet` tables, most significant bit first, to and from hardware.

A byte vector holds wire byte ``i`` in bits ``8*i .. 8*i+7``; a header field is big-endian inside it. All functions are wiring.
"""
from __future__ import annotations

from collections.abc import Mapping

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, ValueLike

from spec import packet

Table = tuple[tuple[str, int], ...]


def get(data: Value, table: Table, base: int, name: str) -> Value:
    """Field `name` of the header that starts at byte `base` of `data`."""
    at = 8 * base
    for field, width in table:
        if field == name:
            break
        at += width
    else:
        raise KeyError(f"no field {name!r}; known: {', '.join(f for f, _ in table)}")
    parts = []  # least significant first: bits of the last byte, then of the byte before it
    end = at + width
    while end > at:
        byte, low = (end - 1) // 8, max(at, (end - 1) // 8 * 8)
        parts.append(data[8 * byte + 8 - (end - 8 * byte):8 * byte + 8 - (low - 8 * byte)])
        end = low
    return Cat(parts)


def put(table: Table, values: Mapping[str, ValueLike]) -> Value:
    """The header as a byte vector; fields not named are 0. Values are cut or extended to their fields."""
    unknown = sorted(set(values) - {name for name, _ in table})
    if unknown:
        raise KeyError(f"no field(s) {', '.join(unknown)}; known: {', '.join(f for f, _ in table)}")
    fields = []
    for name, width in reversed(table):
        value = values.get(name, 0)
        if isinstance(value, int):
            fields.append(Const(value, width))
        else:
            value = Value.cast(value)
            fields.append(value[:width] if len(value) >= width else Cat(value, Const(0, width - len(value))))
    return reverse_bytes(Cat(fields))


def reverse_bytes(value: Value) -> Value:
    return Cat(value[at:at + 8] for at in reversed(range(0, len(value), 8)))


def is_in(opcode: Value, opcodes: frozenset[packet.Opcode]) -> Value:
    """Whether `opcode` is one of `opcodes`."""
    return Cat(opcode == int(op) for op in sorted(opcodes)).any()


def mac(node: Value) -> Value:
    """MAC address of a node, 48 bits."""
    return _plus(packet.MAC_BASE, 48, node)


def ipv4(node: Value) -> Value:
    """IPv4 address of a node, 32 bits."""
    return _plus(packet.IPV4_BASE, 32, node)


def _plus(base: int, width: int, node: Value) -> Value:
    low = (node + (base & 0xFFFF))[:17]
    return Cat(low, Const(base >> 17, width - 17))


def ones_sum(m: Module, words: list[ValueLike]) -> Value:
    """One's complement sum of up to 16 words of 16 bits (RFC 1071)."""
    total, folded = Signal(20, name="ip_sum"), Signal(17, name="ip_sum_folded")
    m.d.comb += [total.eq(sum((Value.cast(w) for w in words[1:]), Value.cast(words[0]))), folded.eq(total[:16] + total[16:])]
    return (folded[:16] + folded[16:])[:16]


# Bytes of the first flit that the iCRC leaves out, and bytes it takes as ones because switches may change them
# (IBA vol. 1 annex A17): the Ethernet header goes, eight bytes of ones stand for the missing local route header.
ICRC_SKIP = packet.ETH_BYTES
ICRC_LRH = bytes([0xFF] * 8)
_IP, _UDP = packet.ETH_BYTES, packet.ETH_BYTES + packet.IP_BYTES
_BTH = _UDP + packet.UDP_BYTES
ICRC_ONES = (_IP + 1, _IP + 8, _IP + 10, _IP + 11, _UDP + 6, _UDP + 7, _BTH + 4)


def icrc_view(flit: Value, first: Value) -> Value:
    """What the iCRC sees of a flit; of a frame's first flit bytes 0 to 13 are zero (:func:`icrc_start` allows for them)."""
    end = max(ICRC_ONES) + 1
    head = [Const(0, 8 * ICRC_SKIP)]
    head += [Const(0xFF, 8) if at in ICRC_ONES else flit[8 * at:8 * at + 8] for at in range(ICRC_SKIP, end)]
    return Cat(Mux(first, Cat(head), flit[:8 * end]), flit[8 * end:])


def icrc_start(crc) -> int:
    """The register before a frame's first flit: after ``ICRC_SKIP`` zero bytes it has seen the pseudo header and no more."""
    return crc.rewound(crc.update(crc.init, ICRC_LRH), ICRC_SKIP)
