"""Instructions of a processing element: 64 bytes each, one declaration for hardware, assembler, disassembler and documentation.

An instruction goes to one unit, or is carried out by the command processor itself. Its common part names up to three circular buffers (two read,
one written) and what must be there before it starts; the rest of it belongs to its unit.
"""
from __future__ import annotations

from enum import IntEnum

from spec.fields import Field, Record, field
from spec.sfu import SfuOp

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


class UnitStatus(IntEnum):
    """A unit's own error, in `info` of its completion."""

    OK = 0
    RANGE = 1  # a size of 0 or beyond the unit's, or a stride that is no multiple of what it must be
    ALIGN = 2  # an operand's address is no multiple of what it must be
    LOCAL = 3  # a row of local memory was damaged beyond repair
    FORMAT = 4  # formats that do not fit each other, or that the unit does not have
    ALONE = 5  # the other half of the product, DOT or REDUCE, did not come


class OutFormat(IntEnum):
    """What the reduction unit makes of its sums."""

    FLOAT32 = 0  # int32 sums too: bits as they are
    BFLOAT16 = 1
    FLOAT16 = 2


def _args(name: str, fields: list[Field]) -> Record:
    """A unit's `args`, filled up."""
    return Record(name, ARGS_BITS, [*fields, field("_rest", ARGS_BITS - sum(f.width for f in fields))])


# DOT: `a` holds `held` rows, `b` streams `rows` rows, both of `chunks` chunks of 64 bytes that follow each other. Groups of as many held rows as the
# engine has are taken in turn; for each the chunks in turn; for each the rows in turn.
DOT_ARGS = _args("DOT_ARGS", [
    field("format_a", 4, "DotFormat"), field("format_b", 4), field("mx_a", 2, "Mx"), field("mx_b", 2),
    field("held", 13), field("rows", 13), field("chunks", 13), field("tail", 7, "bytes of the last chunk that count, 1 to 64; the rest are zero"),
    field("stride_a", 20, "bytes from row to row, a multiple of 64"), field("stride_b", 20),
    field("scale_a", 20, "bytes from the operand to its scales, a multiple of 64: 8 bytes a row and chunk, rows of chunk 0 first"), field("scale_b", 20),
])

# DMA: rows between memory (`address`) and local memory (`a` read, or `d` written); `b` is the index list of GATHER and SCATTER. See spec/dma.py.
DMA_ARGS = _args("DMA_ARGS", [
    field("address", 64, "byte address in memory"), field("to_memory", 1, "from local memory (`a`) to memory; else from memory to local memory (`d`)"),
    field("kind", 2, "DmaOp"), field("row_bytes", 20), field("rows", 16), field("planes", 16),
    field("row_memory", 32, "signed bytes from row to row in memory; GATHER, SCATTER: what an index is multiplied by"),
    field("row_local", 20, "signed"), field("plane_memory", 32, "signed"), field("plane_local", 20, "signed"), field("fill", 32, "pattern of FILL"),
])

# LAYOUT: a tile from `a` to `d`. See spec/layout_unit.py.
LAYOUT_ARGS = _args("LAYOUT_ARGS", [
    field("kind", 2, "LayoutOp"), field("size", 2, "of an element: 0 one byte, 1 two, 2 four"), field("rows", 16), field("columns", 16),
    field("stride_a", 24), field("stride_d", 24),
])

# REDUCE: what the DOT instruction gives that is as many before it, in the same order; sums of `chunks` chunks, `rows` rows, `held` values in each.
REDUCE_ARGS = _args("REDUCE_ARGS", [
    field("held", 13), field("rows", 13), field("chunks", 13), field("stride_d", 20, "bytes from row to row of the result"),
    field("bias", 1, "`a`: binary32 (int32), one a held row, is where every sum starts"), field("integer", 1), field("relu", 1, "what is below 0 becomes +0"),
    field("out", 2, "OutFormat"),
])

# SFU: `rows` rows of `columns` elements; the operation (SfuOp) is the instruction's `op`. Rules: docs/blocks/sfu.md.
SFU_ARGS = _args("SFU_ARGS", [
    field("format_a", 4, "ConvertFormat"), field("format_b", 4), field("format_d", 4, "any but float8_e8m0fnu"),
    field("mx_a", 2, "Mx"), field("mx_d", 2), field("rule", 2, "ScaleRule, with mx_d"),
    field("sat", 1, "overflow and infinities become the largest number; else infinity or NaN"),
    field("stochastic", 1, "rounding with `seed`, and the place of the result in row-major order as index"), field("seed", 32),
    field("source_b", 2, "SfuB"), field("rows", 16), field("columns", 16),
    field("stride_a", 20, "bytes from row to row, a multiple of 64"), field("stride_b", 20, "COLUMN: a multiple of the element's bytes"),
    field("stride_d", 20, "row operations: a multiple of the element's bytes"),
    field("scale_a", 20, "bytes from the operand to its scales, a multiple of 64: 8 bytes a row and chunk, rows of chunk 0 first"), field("scale_d", 20),
    field("low", 32, "binary32, with SCALAR"), field("high", 32, "binary32, of CLAMP"),
])


#: Operations of each unit, by `op`; a unit with one operation has the name of the unit.
OPS: dict[Unit, tuple[str, ...]] = {
    Unit.CONTROL: tuple(c.name.lower() for c in Control), Unit.DMA: ("dma",), Unit.LAYOUT: ("layout",), Unit.DOT: ("dot",), Unit.REDUCE: ("reduce",),
    Unit.SFU: tuple(f"sfu.{o.name.lower()}" for o in SfuOp),
}
ARGS: dict[Unit, Record] = {
    Unit.CONTROL: CONTROL_ARGS, Unit.DMA: DMA_ARGS, Unit.LAYOUT: LAYOUT_ARGS, Unit.DOT: DOT_ARGS, Unit.REDUCE: REDUCE_ARGS, Unit.SFU: SFU_ARGS,
}
SIGNED_ARGS = ("row_memory", "row_local", "plane_memory", "plane_local")
