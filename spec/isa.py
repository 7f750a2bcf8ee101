"""Instructions of a processing element: 64 bytes each, one declaration for hardware, assembler, disassembler and documentation.

An instruction goes to one unit, or is carried out by the command processor itself. Its common part names up to three circular buffers (two read,
one written) and what must be there before it starts; the rest of it belongs to its unit.
"""
from __future__ import annotations

from enum import IntEnum

from spec.fields import Field, Record, field

BITS = 512
CBS = 16  # circular buffers
EVENTS = 16
EVENT_BITS = 16


class Unit(IntEnum):
    """Where an instruction is carried out: the command processor, or a unit with its own queue."""

    CONTROL = 0
    DMA = 1
    LAYOUT = 2
    DOT = 3
    REDUCE = 4
    SFU = 5


UNITS = [u for u in Unit if u is not Unit.CONTROL]


class Control(IntEnum):
    """Instructions of the command processor."""

    NOP = 0
    WAIT = 1  # until counter `event` is at least `value`: a barrier with the other core or with a unit
    SET = 2  # counter `event` becomes `value`
    BUFFER = 3  # circular buffer `cb` becomes empty, with `base` and `size`; nothing that uses it may be on its way
    SYNC = 4  # until everything this core gave out before is done


class CpStatus(IntEnum):
    """Why an instruction ended."""

    OK = 0
    UNIT = 1  # the unit's own error; `info` is its status
    NO_BUFFER = 2  # a circular buffer without size, or a number beyond them
    TOO_LARGE = 3  # needs more than its buffer can ever hold
    STRADDLES = 4  # would go over the end of its buffer
    BAD_OP = 5  # no such unit or instruction
    BUSY = 6  # BUFFER while an instruction that uses the buffer is on its way, or with a base or size that is no multiple of 64
    FLUSHED = 7  # not carried out: an instruction before it failed
    STUCK = 8  # not carried out: nothing was on its way that could have let it start


def _operand(name: str, what: str, done: str) -> list[Field]:
    return [
        field(f"{name}_use", 1), field(f"{name}_cb", 4, "circular buffer"), field(f"{name}_offset", 20, f"bytes from its {what} pointer"),
        field(f"{name}_bytes", 20, f"bytes from there that must {'hold data' if what == 'read' else 'be free'} before it starts"),
        field(f"{name}_{done}", 20, f"bytes that are {'freed' if done == 'pop' else 'published'} when it is done"),
    ]


OPERANDS = {"a": "pop", "b": "pop", "d": "push"}
HEAD = [
    field("unit", 3, "Unit"), field("op", 5, "of the unit"), field("tag", 16, "the program's own, with the completion"),
    field("event_use", 1), field("event", 4, "counter that goes up by one when it is done"), field("_pad", 3),
    *_operand("a", "read", "pop"), *_operand("b", "read", "pop"), *_operand("d", "write", "push"),
]
HEAD_BITS = sum(f.width for f in HEAD)
ARGS_BITS = BITS - HEAD_BITS

INSTRUCTION = Record("INSTRUCTION", BITS, [*HEAD, field("args", ARGS_BITS, "of the unit")])
CONTROL_ARGS = Record("CONTROL_ARGS", ARGS_BITS, [
    field("value", EVENT_BITS), field("cb", 4), field("_pad", 4), field("base", 24, "byte address in local memory, a multiple of 64"),
    field("size", 24, "bytes, a multiple of 64"), field("_rest", ARGS_BITS - EVENT_BITS - 56),
])

# What a unit is given: its instruction with the operands' byte addresses in local memory.
START = Record("START", 5 + ARGS_BITS + 72, [
    field("op", 5), field("args", ARGS_BITS), *(field(name, 24, "byte address of the operand; 0 without") for name in OPERANDS),
])

# What a unit answers, in order: `status` 0, or an error of its own.
UNIT_DONE = Record("UNIT_DONE", 40, [field("status", 8), field("info", 32)])

# Completion of an instruction.
COMPLETION = Record("COMPLETION", 64, [
    field("tag", 16), field("core", 1), field("unit", 3, "Unit"), field("_pad", 4), field("status", 8, "CpStatus"),
    field("info", 32, "UNIT: the unit's status, and its info above"),
])
