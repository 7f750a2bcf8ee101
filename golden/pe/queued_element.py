"""A processing element driven by jobs: the work-queue engine's jobs, their programs carried out by the element; bit-exact, without times.

After a job the command processor goes on, also after an error, and sums that no REDUCE took are dropped.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from golden.pe.command_processor import Completion
from golden.pe.processing_element import ProcessingElement
from golden.pe.work_queue import Program, WorkQueue
from spec.params import MemParams, PeParams


class QueuedElement(WorkQueue):
    """Jobs on `memory`, which they change: :meth:`ring` and :meth:`job` run them, `ends` and `completions` say how."""

    def __init__(self, pe: PeParams, mem: MemParams, memory: NDArray[np.uint8], refused: Iterable[tuple[int, int]] = ()):
        super().__init__(memory, self._carry_out, addr_width=mem.addr_width, refused=tuple(refused))
        self.element = ProcessingElement(pe, memory, 1 << mem.addr_width, self.refused)

    def _carry_out(self, programs: Sequence[Program]) -> list[Completion]:
        done = self.element.run(*programs)
        self.element.clear()
        return done
