"""Assembler and disassembler: round trips, and errors that name line, word and what was expected."""
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec.assembly import AssemblyError, assemble, decode, disassemble, encode, instruction
from spec.isa import ARGS, OPS, SIGNED_ARGS, Unit

TEXT = """
# a product of one tile
buffer cb=0 base=0 size=4096
buffer cb=1 base=0x1000 size=4096 tag=1
dma d=cb0[0:1024]+1024 address=0x123456789ABC row_bytes=1024 rows=1 planes=1 row_memory=-64 tag=2 event=3
dot a=cb0[0:512]-512 b=cb1[64:1024] format_a=float8_e4m3fn format_b=float8_e5m2 mx_a=block_32 mx_b=block_16 held=4 rows=16 chunks=2 tail=64 stride_a=128 stride_b=64
reduce a=cb2[0:16] d=cb3[0:256]+256 held=4 rows=16 chunks=2 stride_d=16 bias=1 relu=1 out=bfloat16   # ReLU
wait event=3 value=2
sync
"""


def test_text_to_bytes_and_back() -> None:
    program = assemble(TEXT)
    assert len(program) == 7 and len(encode(program)) == 7 * 64
    assert decode(encode(program)) == program
    assert assemble(disassemble(program)) == program
    assert program[2]["event_use"] == 1 and program[5]["event_use"] == 0 and program[4]["d_push"] == 256 and program[3]["b_pop"] == 0


operand = st.tuples(st.integers(0, 15), st.integers(0, (1 << 20) - 1), st.integers(0, (1 << 20) - 1), st.integers(0, (1 << 20) - 1))


@given(st.data())
def test_every_instruction_comes_back(data: st.DataObject) -> None:
    unit = data.draw(st.sampled_from([u for u in Unit if u in ARGS]))
    name = data.draw(st.sampled_from(OPS[unit]))
    record = ARGS[unit]
    args = {}
    for f in record.fields:
        if not f.name.startswith("_"):
            low = -(1 << f.width - 1) if f.name in SIGNED_ARGS else 0
            args[f.name] = data.draw(st.integers(low, (1 << f.width - (f.name in SIGNED_ARGS)) - 1))
    kw = {} if unit is Unit.CONTROL else {k: data.draw(st.none() | operand) for k in "abd"}
    i = instruction(name, tag=data.draw(st.integers(0, 0xFFFF)), event=data.draw(st.none() | st.integers(0, 15)), **kw, **args)
    assert decode(encode([i])) == [i]
    assert assemble(disassemble([i])) == [i]


@pytest.mark.parametrize(("line", "message"), [
    ("frob", "no instruction 'frob'; known: nop, wait"), ("dot rows", "'rows': expected name=value"), ("dot rows=x", "rows='x': expected a number"),
    ("dot format_a=fp7", "format_a='fp7': expected a number, or one of tfloat32, bfloat16"), ("dot rows=1 rows=2", "rows is given twice"),
    ("dot bogus=1", "dot has no field 'bogus'; it has format_a"), ("dot rows=8192", "DOT_ARGS.rows = 8192 does not fit in 13 bits"),
    ("dot a=cb0[0:1]+4", r"expected cb<buffer>[<offset>:<bytes>], then -<bytes> or nothing"), ("dma d=cb0[0:1]-4", "then +<bytes> or nothing"),
    ("dot a=cb16[0:1]", "INSTRUCTION.a_cb = 16 does not fit in 4 bits"), ("wait a=cb0[0:1]", "wait has no operand a"),
    ("dma row_local=-524289", "does not fit in 20 bits, signed"), ("dot tag=65536", "INSTRUCTION.tag = 65536 does not fit"),
])
def test_errors_name_the_line(line: str, message: str) -> None:
    with pytest.raises(AssemblyError) as e:
        assemble("sync\n\n" + line + "\n")
    assert str(e.value).startswith("line 3: ") and message in str(e.value) and str(e.value).endswith(line)


def test_what_has_no_text_is_a_comment() -> None:
    strange = instruction("nop") | {"unit": 7}
    assert disassemble([strange]).startswith("# 0x") and assemble(disassemble([strange])) == []
    assert disassemble([]) == ""
    with pytest.raises(ValueError, match="65 bytes; expected a multiple of 64"):
        decode(bytes(65))
