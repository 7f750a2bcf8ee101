"""What the library needs of a machine: registers, memory, and a way to let it run.

Registers are named as in `spec.registers`. Events are the values of the `event` register: completions with the EVENT flag a
node has written since reset.
"""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hccl.psn import PsnSequence
from spec.params import SystemParams

Bytes = NDArray[np.uint8]


class Device(ABC):
    """`params.nodes` nodes on a network.

    Attributes:
        kind: short name (golden, rtl).
        timed: `run` returns clock cycles; else it returns None and there is no time.
        psns: first packet sequence numbers of connections.
    """

    kind: str = "?"
    timed: bool = False

    def __init__(self, params: SystemParams):
        self.params = params
        self.psns = PsnSequence()
        self.user: Any = None  # the communicator that has its queues

    @property
    def nodes(self) -> int:
        return self.params.nodes

    @abstractmethod
    def write_regs(self, writes: Iterable[tuple[int, str, int, int]]) -> None:
        """Write (node, register, index, value) each, in order."""

    @abstractmethod
    def read_regs(self, reads: Sequence[tuple[int, str, int]]) -> list[int]:
        """Values of (node, register, index) each."""

    @abstractmethod
    def mem_write(self, node: int, addr: int, values: Bytes) -> None: ...

    @abstractmethod
    def mem_read(self, node: int, addr: int, n: int) -> Bytes: ...

    @abstractmethod
    def run(self, events: Sequence[int], deadline: int, watch: Sequence[tuple[int, int]] = ()) -> int | None:
        """Run until the `event` register of every node i has reached ``events[i]``; cycles it took.

        Args:
            watch: (node, work queue) whose errors end the run before, as soon as what they set off at other nodes has arrived.

        Raises:
            DeviceTimeout: `deadline` cycles (golden: steps) passed before, or nothing can move; with a dump of the state.
            DeviceFault: a queue of `watch` went into error.
        """

    def write_reg(self, node: int, name: str, index: int, value: int) -> None:
        self.write_regs([(node, name, index, value)])

    def read_reg(self, node: int, name: str, index: int = 0) -> int:
        return self.read_regs([(node, name, index)])[0]

    @abstractmethod
    def close(self) -> None:
        """Release the machine; calling it again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
