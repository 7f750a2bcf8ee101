"""The functional system as a device: exact bits, no time, no loss."""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from golden.chip.capture import Capture
from golden.chip.system import System, SystemFaulted, SystemStalled
from hccl.devices.base import Bytes, Device
from hccl.errors import DeviceError, DeviceFault, DeviceTimeout, integer
from spec.params import SystemParams


class GoldenDevice(Device):
    """`seed`: the order in which nodes and queues act is drawn from it; None: a fixed order. Results do not depend on it.

    `pcap`: file for a capture (pcapng) of the packets that a lossless network would carry for the messages, whose stamps count packets.
    """

    kind = "golden"
    timed = False

    def __init__(self, params: SystemParams, *, seed: int | None = None, pcap: str | None = None):
        super().__init__(params)
        seed = None if seed is None else integer("seed", seed, 0)
        try:
            self._capture = Capture(pcap, params.nodes) if pcap else None
        except OSError as e:
            raise DeviceError(f"pcap: {pcap}: {e.strerror or e}") from None
        self._system: System | None = System(params, seed=seed, capture=self._capture)

    @property
    def system(self) -> System:
        if self._system is None:
            raise DeviceError("device golden is closed; expected a new one")
        return self._system

    def write_regs(self, writes: Iterable[tuple[int, str, int, int]]) -> None:
        for node, name, index, value in writes:
            self.system.write_reg(node, name, index, value)

    def read_regs(self, reads: Sequence[tuple[int, str, int]]) -> list[int]:
        return [self.system.read_reg(*r) for r in reads]

    def mem_write(self, node: int, addr: int, values: Bytes) -> None:
        self.system.mem_write(node, addr, values)

    def mem_read(self, node: int, addr: int, n: int) -> Bytes:
        return self.system.mem_read(node, addr, n)

    def run(self, events: Sequence[int], deadline: int, watch: Sequence[tuple[int, int]] = ()) -> int | None:
        try:
            self.system.run(deadline, watch=watch)
        except SystemFaulted as e:
            raise DeviceFault("golden system: a work queue is in error", e.queues, str(e)) from None
        except SystemStalled as e:
            raise DeviceTimeout("golden system: the collective cannot go on", str(e)) from None
        got = self.read_regs([(i, "event", 0) for i in range(len(events))])
        late = [i for i, (g, want) in enumerate(zip(got, events, strict=True)) if (g - want) & 0x8000_0000]
        if late:
            lines = "\n".join(f"  node {i}: {got[i]} events, expected {events[i]}" for i in late)
            raise DeviceTimeout("golden system: all queues are idle before the expected events", lines)
        return None

    def close(self) -> None:
        self._system = None
        if self._capture is not None:
            self._capture.close()
