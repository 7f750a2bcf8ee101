"""Refusals of the register bank: what is wrong is in the message."""
from __future__ import annotations

import pytest

from rtl.common.csr import CsrBank, is_constant, is_indexed, members_of
from rtl.mem.sram import Sram
from spec.params import CONFIGS, config
from spec.registers import Register, node_registers


def reg(**kw) -> Register:
    return Register(**{"name": "r", "offset": 0, "access": "rw", "doc": "", **kw})


@pytest.mark.parametrize("registers, message", [
    ([reg(access="rx")], "access 'rx'"),
    ([reg(offset=2)], "multiples of 4"),
    ([reg(count=4, stride=12)], "power of two"),
    ([reg(width=33)], "out of range"),
    ([reg(width=4, reset=16)], "out of range"),
    ([reg(count=4)], "out of range"),
    ([reg(), reg(name="s")], "0x0 is taken by r"),
    ([reg(count=4, stride=8), reg(name="s", offset=16)], "0x10 is taken by r"),
    ([reg(offset=1 << 20)], "does not fit in 20 bits"),
])
def test_refused(registers: list[Register], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CsrBank(tuple(registers))


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_members_follow_the_table(name: str) -> None:
    table = node_registers(config(name).node)
    members = members_of(table)
    for r in table:
        if is_constant(r):
            assert r.name not in members
        else:
            assert r.name in members
            assert (r.name + "_stb" in members) == (not is_indexed(r) and r.access != "ro")


@pytest.mark.parametrize("ports", [0, 65, "2"])
def test_memory_ports_refused(ports: object) -> None:
    with pytest.raises(ValueError, match="expected an integer from 1 to 64"):
        Sram(config("tiny").node.mem, ports)
