"""Assembler and disassembler of a processing element's instructions: one line an instruction.

    buffer cb=0 base=0 size=4096
    dma d=cb0[0:1024]+1024 address=0x1000 row_bytes=1024 rows=1 tag=1
    dot a=cb0[0:512]-512 b=cb1[0:4096] format_a=bfloat16 format_b=bfloat16 held=4 rows=64 chunks=1 tail=64 stride_a=64 stride_b=64
    sfu.mul a=cb2[0:4096] b=cb3[0:64] d=cb4[0:2048]+2048 format_d=bfloat16 source_b=row rows=4 columns=256 stride_a=1024 stride_d=512
    wait event=0 value=1

An operand is ``cb<buffer>[<offset>:<bytes>]`` and what is popped (``-n``, of `a` and `b`) or published (``+n``, of `d`) when the instruction is done.
`event` of a unit's instruction is the counter that it raises. Other words are fields of the unit's args (spec/isa.py): numbers, decimal, 0x… or
negative where signed, or names of their enumerations. ``#`` begins a comment.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import IntEnum

from spec.convert import ConvertFormat
from spec.isa import ARGS, ARGS_BITS, HEAD, INSTRUCTION, OPERANDS, OPS, SIGNED_ARGS, OutFormat, Unit
from spec.mx import ScaleRule
from spec.pe import DotFormat, Mx
from spec.sfu import SfuB

NAMES: dict[Unit, dict[str, type[IntEnum]]] = {
    Unit.DOT: {"format_a": DotFormat, "format_b": DotFormat, "mx_a": Mx, "mx_b": Mx}, Unit.REDUCE: {"out": OutFormat},
    Unit.SFU: {"format_a": ConvertFormat, "format_b": ConvertFormat, "format_d": ConvertFormat, "mx_a": Mx, "mx_d": Mx, "rule": ScaleRule, "source_b": SfuB},
}
_OPERAND = re.compile(r"cb(\d+)\[(\d+):(\d+)\](?:([-+])(\d+))?")
_FIELDS = [f.name for f in HEAD if not f.name.startswith("_")] + ["args"]
_BY_OP = {name: (unit, op) for unit, names in OPS.items() for op, name in enumerate(names)}


class AssemblyError(ValueError):
    """What is wrong, with the line."""


def instruction(name: str, *, tag: int = 0, event: int | None = None, a: tuple[int, int, int, int] | None = None, b: tuple[int, int, int, int] | None = None,
                d: tuple[int, int, int, int] | None = None, **args: int) -> dict[str, int]:
    """Fields of one instruction.

    Args:
        name: its operation: ``dma``, ``dot``, …, or one of the processor's own (``wait``, ``buffer``, …).
        a, b, d: operands: (buffer, offset, bytes, bytes popped or published).
        args: of the unit, by name; signed ones may be negative.

    Raises:
        ValueError: no such operation or field, or a value that does not fit.
    """
    if name not in _BY_OP:
        raise ValueError(f"no instruction {name!r}; known: {', '.join(_BY_OP)}")
    unit, op = _BY_OP[name]
    out = dict.fromkeys(_FIELDS, 0) | {"unit": int(unit), "op": op, "tag": tag}
    if event is not None:
        out |= {"event": event, "event_use": int(unit is not Unit.CONTROL)}
    for which, operand in (("a", a), ("b", b), ("d", d)):
        if operand is not None:
            if unit is Unit.CONTROL:
                raise ValueError(f"{name} has no operand {which}")
            cb, offset, nbytes, amount = operand
            out |= {f"{which}_use": 1, f"{which}_cb": cb, f"{which}_offset": offset, f"{which}_bytes": nbytes, f"{which}_{OPERANDS[which]}": amount}
    record = ARGS.get(unit)
    known = [] if record is None else [f.name for f in record.fields if not f.name.startswith("_")]
    for key, value in args.items():
        if record is None or key not in known:
            raise ValueError(f"{name} has no field {key!r}; it has {', '.join(known) or 'none'}")
        if key in SIGNED_ARGS and value < 0:
            if value < -(1 << record.widths[key] - 1):
                raise ValueError(f"{name}: {key}={value} does not fit in {record.widths[key]} bits, signed")
            args[key] = value + (1 << record.widths[key])
    if record is not None:
        out["args"] = record.pack(args)
    INSTRUCTION.pack(out)
    return out


def encode(program: Iterable[Mapping[str, int]]) -> bytes:
    """64 bytes an instruction."""
    return b"".join(INSTRUCTION.to_bytes(i) for i in program)


def decode(data: bytes) -> list[dict[str, int]]:
    """Fields of each instruction.

    Raises:
        ValueError: no whole number of instructions.
    """
    if len(data) % INSTRUCTION.nbytes:
        raise ValueError(f"{len(data)} bytes; expected a multiple of {INSTRUCTION.nbytes}")
    return [INSTRUCTION.from_bytes(data[i : i + INSTRUCTION.nbytes]) for i in range(0, len(data), INSTRUCTION.nbytes)]


def _names(unit: Unit, key: str) -> type[IntEnum] | None:
    """The enumeration of a field, if it has one."""
    return NAMES.get(unit, {}).get(key)


def _number(name: str, key: str, text: str) -> int:
    names = _names(_BY_OP[name][0], key) if name in _BY_OP else None
    if names is not None and text.upper() in names.__members__:
        return int(names[text.upper()])
    try:
        return int(text, 0)
    except ValueError:
        known = f", or one of {', '.join(n.lower() for n in names.__members__)}" if names is not None else ""
        raise ValueError(f"{key}={text!r}: expected a number{known}") from None


def assemble(text: str) -> list[dict[str, int]]:
    """Instructions of a program.

    Raises:
        AssemblyError: line number, the line, what is wrong and what was expected.
    """
    out = []
    for at, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        values: dict[str, int] = {}
        operands: dict[str, tuple[int, int, int, int]] = {}
        try:
            for word in words[1:]:
                key, equals, value = word.partition("=")
                if not equals:
                    raise ValueError(f"{word!r}: expected name=value")
                if key in values or key in operands:
                    raise ValueError(f"{key} is given twice")
                if key in OPERANDS:
                    m = _OPERAND.fullmatch(value)
                    sign = "+" if key == "d" else "-"
                    if not m or (m[4] and m[4] != sign):
                        raise ValueError(f"{key}={value!r}: expected cb<buffer>[<offset>:<bytes>], then {sign}<bytes> or nothing")
                    operands[key] = (int(m[1]), int(m[2]), int(m[3]), int(m[5] or 0))
                else:
                    values[key] = _number(words[0], key, value)
            out.append(instruction(words[0], **operands, **values))  # type: ignore[arg-type]
        except (ValueError, KeyError) as e:
            raise AssemblyError(f"line {at}: {e.args[0]}\n  {line.strip()}") from None
    return out


def disassemble(program: Iterable[Mapping[str, int]]) -> str:
    """Text that assembles to the same instructions; what has no text (an unknown unit, bits that no field has) is shown as a comment."""
    lines = []
    for i in program:
        unit, op = i["unit"], i["op"]
        names = OPS.get(Unit(unit)) if unit in list(Unit) else None
        record = ARGS.get(Unit(unit)) if names else None
        if names is None or op >= len(names) or (record is None and i["args"]):
            lines.append(f"# {INSTRUCTION.pack(i):#0{2 + INSTRUCTION.bits // 4}x}")
            continue
        words = [names[op]]
        for which, amount in OPERANDS.items():
            if i[f"{which}_use"]:
                moved = i[f"{which}_{amount}"]
                words.append(f"{which}=cb{i[f'{which}_cb']}[{i[f'{which}_offset']}:{i[f'{which}_bytes']}]" + (f"{'+' if which == 'd' else '-'}{moved}" if moved else ""))
        if record is not None:
            for key, value in record.unpack(i["args"]).items():
                if value:
                    shown = str(value - (1 << record.widths[key]) if key in SIGNED_ARGS and value >> record.widths[key] - 1 else value)
                    enum = _names(Unit(unit), key)
                    if enum is not None and value in list(enum):
                        shown = enum(value).name.lower()
                    words.append(f"{key}={shown}")
        if i["event_use"] or (unit == Unit.CONTROL and i["event"]):
            words.append(f"event={i['event']}")
        if i["tag"]:
            words.append(f"tag={i['tag']}")
        lines.append(" ".join(words))
    return "\n".join(lines) + "\n" if lines else ""


__all__ = ["ARGS_BITS", "AssemblyError", "assemble", "decode", "disassemble", "encode", "instruction"]
