"""Packets of a message and the time they take on a link: the bound that collectives are measured against.

The bound of a set of messages is the time of the busiest transmit link, every data packet at its wire size
(padding, headers, iCRC, preamble, gap) and the line rate, plus the latency of one link. Acknowledgements are not
counted: the bound is what no implementation of this packet format can beat.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from spec.packet import Opcode, segment, wire_bytes
from spec.params import LinkParams
from spec.wqe import Op

# first, middle, last, only
_OPCODES: dict[Op, tuple[Opcode, Opcode, Opcode, Opcode]] = {
    Op.SEND: (Opcode.SEND_FIRST, Opcode.SEND_MIDDLE, Opcode.SEND_LAST, Opcode.SEND_ONLY),
    Op.SEND_IMM: (Opcode.SEND_FIRST, Opcode.SEND_MIDDLE, Opcode.SEND_LAST_IMM, Opcode.SEND_ONLY_IMM),
    Op.WRITE: (Opcode.WRITE_FIRST, Opcode.WRITE_MIDDLE, Opcode.WRITE_LAST, Opcode.WRITE_ONLY),
    Op.WRITE_IMM: (Opcode.WRITE_FIRST, Opcode.WRITE_MIDDLE, Opcode.WRITE_LAST_IMM, Opcode.WRITE_ONLY_IMM),
    Op.READ: (Opcode.READ_RESPONSE_FIRST, Opcode.READ_RESPONSE_MIDDLE, Opcode.READ_RESPONSE_LAST, Opcode.READ_RESPONSE_ONLY),
}


def packets(op: int, length: int, mtu: int) -> list[tuple[Opcode, int]]:
    """(BTH opcode, payload bytes) of each packet of a message of `op` SEND, SEND_IMM, WRITE or WRITE_IMM; of READ: of its responses.

    Raises:
        ValueError: `op` sends no message.
    """
    if op not in _OPCODES:
        raise ValueError(f"op {op!r} sends no message; those that do: {', '.join(o.name for o in _OPCODES)}")
    first, middle, last, only = _OPCODES[Op(op)]
    sizes = segment(length, mtu)
    if len(sizes) == 1:
        return [(only, sizes[0])]
    return [(first, sizes[0])] + [(middle, n) for n in sizes[1:-1]] + [(last, sizes[-1])]


@cache
def message_wire_bytes(op: int, length: int, mtu: int) -> int:
    """Bytes of line time of a message's data packets."""
    middles = max(-(-length // mtu) - 2, 0)  # beyond one of them, only the count differs
    cut = packets(op, length - max(middles - 1, 0) * mtu, mtu)
    return sum(wire_bytes(*p) for p in cut) + max(middles - 1, 0) * wire_bytes(_OPCODES[Op(op)][1], mtu)


def bound_cycles(messages_per_node: Sequence[Iterable[tuple[int, int]]], mtu: int, link: LinkParams) -> int:
    """Cycles no run can beat, given the (op, length) of every message each node sends; 0 when none does."""
    busiest = max((sum(message_wire_bytes(op, n, mtu) for op, n in msgs) for msgs in messages_per_node), default=0)
    return -(-busiest // link.rate) + link.latency if busiest else 0
