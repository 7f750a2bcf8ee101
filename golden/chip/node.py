"""Functional node: memory, message engine with near-memory compute, NIC, behind the registers of `spec.registers`.

Registers read and write as on the control port, by name: values are cut to the register's width, commands (`w1`) and
write-only registers read 0. Writing a read-only register is refused here, as no driver has a reason to.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from golden.mem.memory import Memory
from golden.nic.me import M32, MessageEngine
from golden.nic.qp import PSN_MASK, Nic
from spec.params import NodeParams
from spec.registers import VERSION, Register, node_registers

_MR = {"mr_base": "base", "mr_size": "size", "mr_key": "key", "mr_access": "access"}
_QP = {"qp_dest_qp": "dest_qp", "qp_dest_node": "dest_node", "qp_sq_psn": "sq_psn", "qp_rq_psn": "rq_psn"}
_CQ = ("cq_base", "cq_size", "cq_head", "wait_timeout")


@lru_cache
def register_table(p: NodeParams) -> dict[str, Register]:
    return {r.name: r for r in node_registers(p)}


class Node:
    """`network(node)` finds another node's NIC by its `node` register, or None."""

    def __init__(
        self, params: NodeParams, number: int, network: Callable[[int], Nic | None]
    ):
        self.params = params
        self.table = register_table(params)
        self.memory = Memory(params.mem.size_bytes)
        self.nic = Nic(number, params.nic, self.memory, network)
        self.engine = MessageEngine(params, self.memory, self.nic)
        for r in self.table.values():
            if r.access == "rw" and r.reset:
                for i in range(r.count):
                    self.write_reg(r.name, i, r.reset)

    def _register(self, name: str, index: int) -> Register:
        if name not in self.table:
            raise KeyError(f"no register {name!r}; known: {', '.join(self.table)}")
        r = self.table[name]
        if not 0 <= index < r.count:
            raise IndexError(f"register {name}: copy {index} of {r.count}")
        return r

    def write_reg(self, name: str, index: int, value: int) -> None:
        """Raises KeyError, IndexError: no such register. ValueError: read-only, or a forbidden doorbell or reset."""
        r = self._register(name, index)
        if r.access == "ro":
            raise ValueError(f"register {name} is read-only")
        value = int(value) & ((1 << r.width) - 1)
        if name in _MR:
            setattr(self.nic.regions.regions[index], _MR[name], value)
        elif name in _QP:
            setattr(self.nic.qps[index], _QP[name], value & PSN_MASK)
        elif name == "qp_state":
            self.nic.set_state(self.nic.qps[index], value)
        elif name in _CQ:
            setattr(self.engine, name, value)
        elif name == "node":
            self.nic.node = value
        elif name in ("wq_base", "wq_size"):
            setattr(self.engine.queues[index], name[3:], value)
        elif name == "wq_tail":
            self.engine.doorbell(self.engine.queues[index], value)
        elif name == "wq_reset":
            self.engine.reset_queue(self.engine.queues[index])
        else:
            raise NotImplementedError(f"register {name}: the golden node has no effect for it")

    def read_reg(self, name: str, index: int = 0) -> int:
        """Raises KeyError, IndexError: no such register."""
        r = self._register(name, index)
        if r.access in ("wo", "w1"):
            return 0
        if name == "id":
            return r.reset
        if name == "version":
            return VERSION
        if name == "node":
            return self.nic.node
        if name in _MR:
            return getattr(self.nic.regions.regions[index], _MR[name])
        if name in _QP:
            return getattr(self.nic.qps[index], _QP[name])
        if name == "qp_state":
            return int(self.nic.qps[index].state)
        if name in _CQ or name == "cq_tail":
            return getattr(self.engine, name)
        if name == "event":
            return self.engine.events
        if name in self.nic.counters:
            return self.nic.counters[name] & M32
        if name == "nmc_busy":
            return self.engine.nmc_busy & M32
        queue = self.engine.queues[index]
        if name in ("wq_base", "wq_size", "wq_tail"):
            return getattr(queue, name[3:])
        if name == "wq_head":
            return queue.head & M32
        if name == "wq_state":
            return int(queue.error) | bool(queue.held) << 1 | int(queue.resetting) << 2
        raise NotImplementedError(f"register {name}: the golden node has no value for it")

    def report(self) -> list[str]:
        return self.engine.report() + self.nic.report()
