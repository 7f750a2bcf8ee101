"""The simulated hardware as a device: a client of the bench's simulator service, reached by the same calls as golden."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hccl.devices.base import Bytes, Device
from hccl.errors import DeviceError, DeviceFault, DeviceTimeout
from spec.params import SystemParams


class RtlDevice(Device):
    """Args: as of ``tb.chip.service.SimService``: seed, probability of stalls, faults of the links by kind (``{"drop": 0.01}``),
    file for the waves, for the capture of the links, simulator.

    Raises:
        DeviceError: the benches (`tb`) or the simulator are not installed.
    """

    kind = "rtl"
    timed = True

    def __init__(
        self, params: SystemParams, *, seed: int = 0, stalls: float = 0.0, faults: dict[str, float] | None = None,
        waves: str | None = None, pcap: str | None = None, sim: str = "verilator",
    ):  # fmt: skip
        super().__init__(params)
        self._service: Any = None
        try:
            from tb.chip.service import SimFailure, SimFault, SimService, SimTimeout
        except ImportError as e:
            raise DeviceError(
                f"device rtl is not available: {e}; expected the benches (tb), cocotb and {sim} in this environment"
            ) from None
        self._timeout, self._fault, self._failure = SimTimeout, SimFault, SimFailure
        try:
            self._service = SimService(params, seed=seed, stalls=stalls, faults=faults, waves=waves, pcap=pcap, sim=sim)
        except (OSError, RuntimeError, ValueError) as e:
            raise DeviceError(f"device rtl did not start: {str(e) or type(e).__name__}") from e

    @contextmanager
    def _calls(self) -> Iterator[Any]:
        if self._service is None:
            raise DeviceError("device rtl is closed; expected a new one")
        try:
            yield self._service
        except self._failure as e:
            raise DeviceError(f"device rtl failed: {e}") from e

    @property
    def cycles(self) -> int:
        """Clock cycles since reset."""
        with self._calls() as service:
            return int(service.cycles)

    def write_regs(self, writes: Iterable[tuple[int, str, int, int]]) -> None:
        with self._calls() as service:
            service.write_regs(list(writes))

    def read_regs(self, reads: Sequence[tuple[int, str, int]]) -> list[int]:
        with self._calls() as service:
            return [int(v) for v in service.read_regs(list(reads))]

    def mem_write(self, node: int, addr: int, values: Bytes) -> None:
        with self._calls() as service:
            service.mem_write(node, addr, values)

    def mem_read(self, node: int, addr: int, n: int) -> Bytes:
        with self._calls() as service:
            return np.asarray(service.mem_read(node, addr, n), dtype=np.uint8)

    def run(self, events: Sequence[int], deadline: int, watch: Sequence[tuple[int, int]] = ()) -> int | None:
        """Cycles from the first register write since the last other call (the doorbells) to the last event."""
        with self._calls() as service:
            try:
                return int(service.run(list(events), deadline, list(watch)))
            except self._fault as e:
                raise DeviceFault("rtl: a work queue is in error", e.queues, str(e)) from None
            except self._timeout as e:
                raise DeviceTimeout(f"rtl: no end within {deadline} cycles", str(e)) from None

    def close(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            service.close()
