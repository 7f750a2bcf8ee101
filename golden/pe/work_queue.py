"""Work-queue engine: jobs from descriptors in memory, one after the other; records as hardware writes them, without times.

Rules: rtl/pe/work_queue.py's contract, docs/blocks/work_queue.md. A job's programs are read from memory when it starts, so a job may write the next one's.
Hardware reads ahead: a program that an earlier job writes needs FENCE, or that job's record before its doorbell.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from golden.pe.command_processor import Completion
from spec.isa import INSTRUCTION, CpStatus
from spec.work_queue import JOB, JOB_RECORD, JobStatus

Program = list[dict[str, int]]
Run = Callable[[Sequence[Program]], list[Completion]]
LINE = INSTRUCTION.nbytes
TIMES = ("doorbell", "first", "mac", "ended")  # fields of a record that say when


@dataclass
class WorkQueue:
    """Jobs on `memory`.

    Args:
        memory: bytes, records are written into it.
        run: carries out a program for each core on a cleared command processor: completions.
        addr_width: of memory's addresses.
        refused: ranges (first, end) of addresses that memory refuses; what lies beyond memory it refuses as well.

    Attributes:
        errors: records that were not written.
        ends: (tag, status) of each job.
    """

    memory: NDArray[np.uint8]
    run: Run
    addr_width: int = 32
    refused: Iterable[tuple[int, int]] = ()
    errors: int = 0
    ends: list[tuple[int, JobStatus]] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)

    def readable(self, at: int) -> bool:
        """Whether memory answers for the 64 bytes at `at`."""
        return at + LINE <= len(self.memory) and not any(first < at + LINE and at < end for first, end in self.refused)

    def ring(self, base: int, size: int, first: int, count: int) -> None:
        """Jobs number `first` to ``first + count - 1`` of the ring of `size` descriptors at `base`."""
        for number in range(first, first + count):
            at = base + LINE * (number % size)
            if self.readable(at):
                self.job(JOB.from_bytes(self.memory[at : at + LINE].tobytes()))
            else:
                self.errors += 1
                self.ends.append((0, JobStatus.READ))

    def job(self, job: Mapping[str, int]) -> None:
        """One job, from its descriptor to its record."""
        wanted = [(job[f"program{k}"], job[f"count{k}"]) for k in range(2)]
        status, address, done = JobStatus.OK, 0, []
        if any(count and at % LINE for at, count in wanted):
            status = JobStatus.ALIGN
        elif any(count and at + LINE * (count - 1) >= 1 << self.addr_width for at, count in wanted):
            status = JobStatus.RANGE
        else:
            programs: list[Program] = []
            for at, count in reversed(wanted):
                lines = range(at, at + LINE * count, LINE)
                read = next((i for i, x in enumerate(lines) if not self.readable(x)), count)
                if read < count:
                    status, address = JobStatus.READ, lines[read]
                programs.insert(0, [INSTRUCTION.from_bytes(self.memory[x : x + LINE].tobytes()) for x in lines[:read]])
            done = self.run(programs)
        fail = next((c for c in done if c.status != CpStatus.OK), None)
        if status == JobStatus.OK and fail is not None:
            status = JobStatus.FAILED
        record = dict(tag=job["tag"], status=int(status), completions=len(done), address=address)
        if fail is not None:
            record |= dict(fail_tag=fail.tag, fail_core=fail.core, fail_unit=int(fail.unit), fail_status=int(fail.status), fail_info=fail.info)
        self.completions += done
        self.ends.append((job["tag"], status))
        at = job["record"]
        if at % LINE or (at and not self.readable(at)):
            self.errors += 1
        elif at:
            self.memory[at : at + LINE] = np.frombuffer(JOB_RECORD.to_bytes(record), np.uint8)
