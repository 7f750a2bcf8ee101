"""Control path in the verbs' words, over any device: context, protection domain, memory region, completion queue, queue pair.

Two things differ from a NIC's verbs. Work of a queue pair is posted through a *work queue* of the node's message engine (several
queue pairs may share one), and besides sends and receives a work queue takes REDUCE, COPY, WAIT and SET. `WorkQueue.stage` writes
work-queue elements into the ring; `WorkQueue.doorbell` hands them over. One protection domain per node: the hardware checks
keys, bounds and rights of its regions.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hccl.devices.base import Device
from hccl.errors import UsageError
from spec.registers import ID_VALUE, Access, QpState
from spec.wqe import CQE, CQE_BYTES, WQE, WQE_BYTES, Flag, Op, Status

M32 = 0xFFFF_FFFF


class Context:
    """One node of a device, opened.

    Raises:
        UsageError: no such node, or what answers is not a node.
    """

    def __init__(self, device: Device, node: int):
        if not 0 <= node < device.nodes:
            raise UsageError(f"node {node}: the device has {device.nodes}; expected 0 to {device.nodes - 1}")
        self.device, self.node = device, node
        self.params = device.params.node
        got = self.read("id")
        if got != ID_VALUE:
            raise UsageError(f"node {node}: id register reads {got:#x}; expected {ID_VALUE:#x}")
        self.write("node", node)

    def read(self, name: str, index: int = 0) -> int:
        return self.device.read_reg(self.node, name, index)

    def write(self, name: str, value: int, index: int = 0) -> None:
        self.device.write_reg(self.node, name, index, value)

    def alloc_pd(self) -> ProtectionDomain:
        return ProtectionDomain(self)

    def create_cq(self, base: int, size: int) -> CompletionQueue:
        return CompletionQueue(self, base, size)

    def create_wq(self, number: int, base: int, size: int) -> WorkQueue:
        return WorkQueue(self, number, base, size)


@dataclass(frozen=True, kw_only=True)
class MemoryRegion:
    """A registered region: `lkey` and `rkey` are equal."""

    index: int
    addr: int
    length: int
    access: int
    lkey: int

    @property
    def rkey(self) -> int:
        return self.lkey


class ProtectionDomain:
    """Regions of a node; keys are the index of the region below a number that changes with every registration."""

    def __init__(self, context: Context):
        self.context = context
        self.free = list(range(context.params.nic.mrs - 1, -1, -1))
        self.regions: dict[int, MemoryRegion] = {}
        self._generation = 0

    def reg_mr(self, addr: int, length: int, access: int = 0) -> MemoryRegion:
        """Register bytes ``addr … addr + length``; `access` as `Access` bits.

        Raises:
            UsageError: outside node memory, of no size, unknown rights, or no region left.
        """
        size = self.context.params.mem.size_bytes
        if addr < 0 or length < 1 or addr + length > size:
            raise UsageError(f"reg_mr: {addr:#x} … +{length} is outside node memory; expected within {size} bytes, at least one")
        if access & ~int(sum(Access)):
            raise UsageError(f"reg_mr: access {access:#x}; expected Access bits only")
        if not self.free:
            raise UsageError(f"reg_mr: all {self.context.params.nic.mrs} memory regions are in use")
        index = self.free.pop()
        self._generation += 1
        key = (self._generation * self.context.params.nic.mrs + index) & M32
        mr = MemoryRegion(index=index, addr=addr, length=length, access=access, lkey=key)
        self.regions[index] = mr
        node = self.context.node
        self.context.device.write_regs([
            (node, "mr_base", index, addr), (node, "mr_access", index, access), (node, "mr_key", index, key),
            (node, "mr_size", index, length),
        ])  # fmt: skip
        return mr

    def dereg_mr(self, mr: MemoryRegion) -> None:
        """Raises: UsageError: not registered here, or already gone."""
        if self.regions.get(mr.index) != mr:
            raise UsageError(f"dereg_mr: region {mr.index} with key {mr.lkey:#x} is not registered")
        self.context.write("mr_size", 0, mr.index)
        del self.regions[mr.index]
        self.free.append(mr.index)

    def create_qp(self, qpn: int, wq: WorkQueue) -> QueuePair:
        return QueuePair(self, qpn, wq)


@dataclass(frozen=True, kw_only=True)
class WorkCompletion:
    """One completion, as ibv_wc: `status` a spec.wqe.Status where it is known."""

    wr_id: int
    status: int
    opcode: int
    queue: int
    byte_len: int
    imm: int
    qpn: int
    wqe_index: int
    info: int

    @property
    def status_name(self) -> str:
        return Status(self.status).name if self.status in Status._value2member_map_ else f"status {self.status}"


class CompletionQueue:
    """The node's completion ring: `size` entries at `base`. A new entry is told from an old one by its phase bit."""

    def __init__(self, context: Context, base: int, size: int):
        if size < 1 or size & (size - 1) or base % 64:
            raise UsageError(f"create_cq: base {base:#x}, {size} entries; expected a 64-byte boundary and a power of two")
        self.context, self.base, self.size = context, base, size
        # The hardware counts CQEs since its reset: entries follow from there, so this ring begins where they are.
        self.head = context.read("cq_tail")
        node = context.node
        # Every entry must look old when the hardware's count reaches it.
        ring = np.zeros((size, CQE_BYTES), dtype=np.uint8)
        bit = CQE.offsets["phase"]
        for i in range(size):
            later = self._phase(self.head) if i >= self.head % size else self._phase(self.head + size)
            ring[i, bit // 8] = (later ^ 1) << (bit % 8)
        context.device.mem_write(node, base, ring.reshape(-1))
        context.device.write_regs([
            (node, "cq_base", 0, base), (node, "cq_head", 0, self.head), (node, "cq_size", 0, size),
        ])  # fmt: skip

    def _phase(self, n: int) -> int:
        return 1 - n // self.size % 2

    def poll(self, most: int = 1 << 16) -> list[WorkCompletion]:
        """Completions written since the last call, oldest first; frees their entries."""
        out: list[WorkCompletion] = []
        device, node = self.context.device, self.context.node
        while len(out) < most:
            at = self.head % self.size
            n = min(self.size - at, most - len(out), 64 if out else 8)
            block = device.mem_read(node, self.base + at * CQE_BYTES, n * CQE_BYTES)
            fresh = 0
            for i in range(n):
                cqe = CQE.from_bytes(bytes(block[i * CQE_BYTES : (i + 1) * CQE_BYTES]))
                if cqe.pop("phase") != self._phase(self.head):
                    break
                out.append(WorkCompletion(**cqe))
                self.head = self.head + 1 & M32
                fresh += 1
            if fresh < n:
                break
        if out:
            self.context.write("cq_head", self.head)
        return out


class WorkQueue:
    """A work queue of the message engine: a ring of `size` WQEs at `base`, a power of two.

    Making one resets the queue's counters; nothing may be outstanding on it.
    """

    def __init__(self, context: Context, number: int, base: int, size: int):
        if not 0 <= number < context.params.me.queues:
            raise UsageError(f"create_wq: queue {number}; expected below {context.params.me.queues}")
        if size < 1 or size & (size - 1) or base % WQE_BYTES:
            raise UsageError(f"create_wq: base {base:#x}, {size} entries; expected a 64-byte boundary and a power of two")
        self.context, self.number, self.base, self.size = context, number, base, size
        self.staged = self.posted = self._done = 0  # _done: wq_head when it was last read
        node = context.node
        context.device.write_regs([
            (node, "wq_reset", number, 1), (node, "wq_base", number, base), (node, "wq_size", number, size),
        ])  # fmt: skip

    def stage(self, words: bytes) -> None:
        """Write WQEs into the ring behind those already there; they run after `doorbell`.

        Raises:
            UsageError: not whole WQEs, or more than the ring has room for.
        """
        n, rest = divmod(len(words), WQE_BYTES)
        if rest:
            raise UsageError(f"work queue {self.number}: {len(words)} bytes; expected a multiple of {WQE_BYTES}")
        room = self.size - (self.staged - self._done & M32)
        if n > room:
            self._done = self.context.read("wq_head", self.number)
            room = self.size - (self.staged - self._done & M32)
        if n > room:
            raise UsageError(f"work queue {self.number}: {n} WQEs, the ring of {self.size} has room for {room}")
        data = np.frombuffer(words, dtype=np.uint8)
        at = self.staged % self.size
        first = min(n, self.size - at)
        write = self.context.device.mem_write
        for where, part in ((at, data[: first * WQE_BYTES]), (0, data[first * WQE_BYTES :])):
            if part.size:
                write(self.context.node, self.base + where * WQE_BYTES, part)
        self.staged = self.staged + n & M32

    def doorbell(self, n: int | None = None) -> tuple[int, str, int, int]:
        """The register write that hands over `n` staged WQEs (None: all); the caller may batch it with others.

        Raises:
            UsageError: fewer are staged.
        """
        waiting = self.staged - self.posted & M32
        n = waiting if n is None else n
        if not 0 <= n <= waiting:
            raise UsageError(f"work queue {self.number}: doorbell for {n} WQEs, {waiting} are staged")
        self.posted = self.posted + n & M32
        return (self.context.node, "wq_tail", self.number, self.posted)

    def post(self, **fields: int) -> None:
        """Stage one WQE (fields of `spec.wqe.WQE`) and ring the doorbell."""
        self.stage(WQE.to_bytes(fields))
        self.context.device.write_regs([self.doorbell()])


class QueuePair:
    """A reliable connection. States go RESET → INIT → RTR → RTS; ERR and RESET from any."""

    def __init__(self, pd: ProtectionDomain, qpn: int, wq: WorkQueue):
        context = pd.context
        if not 0 <= qpn < context.params.nic.qps:
            raise UsageError(f"create_qp: number {qpn}; expected below {context.params.nic.qps}")
        self.pd, self.context, self.qpn, self.wq = pd, context, qpn, wq
        self.modify(QpState.RESET)

    @property
    def state(self) -> QpState:
        """As the hardware has it: it moves a queue pair to ERR by itself."""
        return QpState(self.context.read("qp_state", self.qpn))

    def modify(
        self, state: QpState, *, dest_node: int | None = None, dest_qp: int | None = None, rq_psn: int | None = None,
        sq_psn: int | None = None,
    ) -> None:  # fmt: skip
        """Move to `state`. RTR takes the peer (`dest_node`, `dest_qp`) and `rq_psn`; RTS takes `sq_psn`.

        Raises:
            UsageError: not the next state, or an attribute that is missing or does not belong.
        """
        values = {"dest_node": dest_node, "dest_qp": dest_qp, "rq_psn": rq_psn, "sq_psn": sq_psn}
        given = {k for k, v in values.items() if v is not None}
        needs = {QpState.RTR: {"dest_node", "dest_qp", "rq_psn"}, QpState.RTS: {"sq_psn"}}.get(state, set())
        if given != needs:
            raise UsageError(f"qp {self.qpn} to {state.name}: given {sorted(given)}; expected exactly {sorted(needs)}")
        order = (QpState.RESET, QpState.INIT, QpState.RTR, QpState.RTS)
        now = self.state if state in order[1:] else None
        if now is not None and now != order[order.index(state) - 1]:
            want = order[order.index(state) - 1].name
            raise UsageError(f"qp {self.qpn}: {now.name} to {state.name} is no step; expected to be in {want}")
        node, device, me = self.context.node, self.context.device, (self.context.node, self.qpn)
        if state == QpState.RESET and me in device.psns.open:  # what is under way has numbers near these
            sq, rq = device.read_regs([(node, "qp_sq_psn", self.qpn), (node, "qp_rq_psn", self.qpn)])
            device.psns.left[me] = sq, rq
            device.psns.open.remove(me)
        elif state == QpState.RTR:
            device.psns.open.add(me)
        writes = [(node, f"qp_{k}", self.qpn, v) for k, v in values.items() if v is not None]
        device.write_regs([*writes, (node, "qp_state", self.qpn, int(state))])

    def post_send(self, mr: MemoryRegion, addr: int, length: int, *, wr_id: int = 0, flags: int = Flag.SIGNALED) -> None:
        """Send `length` bytes at `addr` of `mr`.

        Raises:
            UsageError: outside the region, or the queue pair cannot send.
        """
        self._check(mr, addr, length, QpState.RTS)
        self.wq.post(opcode=Op.SEND, qpn=self.qpn, addr_a=addr, length=length, lkey=mr.lkey, wr_id=wr_id, flags=int(flags))

    def post_recv(self, mr: MemoryRegion, addr: int, length: int, *, wr_id: int = 0, flags: int = Flag.SIGNALED) -> None:
        """Offer `length` bytes at `addr` of `mr` to the next message.

        Raises:
            UsageError: outside the region, a region without LOCAL_WRITE, or the queue pair cannot receive.
        """
        self._check(mr, addr, length, QpState.INIT)
        if not mr.access & Access.LOCAL_WRITE:
            raise UsageError(f"post_recv: region {mr.index} is not writable; expected Access.LOCAL_WRITE")
        self.wq.post(opcode=Op.RECV, qpn=self.qpn, addr_d=addr, length=length, lkey=mr.lkey, wr_id=wr_id, flags=int(flags))

    def _check(self, mr: MemoryRegion, addr: int, length: int, least: QpState) -> None:
        if length < 0 or addr < mr.addr or addr + length > mr.addr + mr.length:
            raise UsageError(f"{addr:#x} … +{length} is outside region {mr.index}; expected {mr.addr:#x} … +{mr.length}")
        state = self.state
        if not least <= state <= QpState.RTS:
            raise UsageError(f"qp {self.qpn} is in {state.name}; expected {least.name} or later, and no error")


def connect(pairs: Sequence[tuple[QueuePair, QueuePair]], psn: int | None = None) -> None:
    """Bring each two queue pairs to RTS, connected to each other; packets are numbered from `psn` each way.

    None: from the next number of the device's sequence (`hccl.psn`), the same for all pairs: packets of connections that these queue
    pairs had before are not taken for packets of these.
    """
    if psn is None and pairs:
        psn = pairs[0][0].context.device.psns.next([(qp.context.node, qp.qpn) for pair in pairs for qp in pair])
    for a, b in pairs:
        for qp, peer in ((a, b), (b, a)):
            qp.modify(QpState.INIT)
            qp.modify(QpState.RTR, dest_node=peer.context.node, dest_qp=peer.qpn, rq_psn=psn)
            qp.modify(QpState.RTS, sq_psn=psn)
