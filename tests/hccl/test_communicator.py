"""The communicator's contract: groups, mismatches, buffers, deadlines, errors, results."""
from __future__ import annotations

import re
import shutil
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from golden.chip.system import System, SystemFaulted, SystemStalled
from hccl.communicator import Communicator
from hccl.devices import open_device
from hccl.devices.rtl import RtlDevice
from hccl.errors import CollectiveError, CollectiveTimeout, DeviceError, MismatchError, UsageError
from spec.packet import FIRST_QP
from spec.params import SystemParams, config
from spec.registers import QpState

TINY = config("tiny")


@pytest.fixture
def comm() -> Communicator:
    return Communicator(open_device("golden", TINY.replace(nodes=3)))


def vectors(n: int = 3, count: int = 8) -> list[np.ndarray]:
    return [np.arange(count, dtype=np.float32) + r for r in range(n)]


def total(x: list[np.ndarray]) -> np.ndarray:
    return np.sum(x, axis=0)


def test_new_outputs_keep_shape_and_inputs(comm: Communicator) -> None:
    x = [v.reshape(2, 4) for v in vectors()]
    before = [v.copy() for v in x]
    result = comm.all_reduce(x)
    assert all((o == total(before)).all() and o.shape == (2, 4) for o in result.outputs)
    assert all((a == b).all() for a, b in zip(x, before, strict=True))


def test_in_place_touches_nothing_else(comm: Communicator) -> None:
    whole = [np.full(16, -1, np.float32) for _ in range(3)]
    x = [w[4:12] for w in whole]
    for v, src in zip(x, vectors(), strict=True):
        v[:] = src
    result = comm.all_reduce(x, in_place=True)
    for w, v, o in zip(whole, x, result.outputs, strict=True):
        assert o is v and (v == total(vectors())).all() and (w[:4] == -1).all() and (w[12:] == -1).all()
    same = vectors()
    comm.all_reduce(same, same)  # recvbuf is sendbuf: in place
    assert all((v == total(vectors())).all() for v in same)


def test_strided_arrays(comm: Communicator) -> None:
    base = np.arange(48, dtype=np.float32).reshape(6, 8)
    for view in (base[::2], base[:, 3], base.T, base[1:4, 2:5], base[::-1]):
        recv = [np.full((*view.shape, 2), 7, np.float32) for _ in range(3)]
        comm.all_reduce([view, view + 1, view - 1], [r[..., 0] for r in recv])
        assert all((r[..., 0] == 3 * view).all() and (r[..., 1] == 7).all() for r in recv)


@pytest.mark.parametrize("shape", [(0,), (1, 0, 2), (3, 0)])
def test_empty(comm: Communicator, shape: tuple[int, ...]) -> None:
    result = comm.all_reduce([np.empty(shape, np.float32)] * 3, op="avg")
    assert [o.shape for o in result.outputs] == [shape] * 3 and result.cycles is None and result.wqes == {}


def test_group_of_rank_calls(comm: Communicator) -> None:
    x, y = vectors(), [v.astype(np.int32) for v in vectors()]
    out = [np.empty(8, np.float32) for _ in range(3)]
    with comm.group() as group:
        for r in (2, 0, 1):
            comm.rank(r).all_reduce(x[r], out[r])
            comm.rank(r).all_reduce(y[r], op="max", in_place=True)
    assert all((o == total(x)).all() for o in out) and all((v == np.arange(8) + 2).all() for v in y)
    assert [r.seq for r in group.results] == [0, 1] and comm.rank(1).nranks == 3


def in_group(comm: Communicator, *calls) -> None:
    with comm.group():
        for r, (args, kw) in enumerate(calls):
            comm.rank(r).all_reduce(*args, **kw)


def test_mismatches_name_ranks_and_what(comm: Communicator) -> None:
    a, b, c = vectors()
    cases = [
        ([((a,), {}), ((b,), {}), ((np.zeros(9, np.float32),), {})], "count differs: rank\\(s\\) 0, 1: 8; rank\\(s\\) 2: 9"),
        ([((a,), {}), ((b.astype(np.float16),), {}), ((c,), {})], "dtype differs: rank\\(s\\) 0, 2: float32; rank\\(s\\) 1: float16"),
        ([((a,), {"op": "max"}), ((b,), {}), ((c,), {})], "op differs: rank\\(s\\) 0: max; rank\\(s\\) 1, 2: sum"),
        ([((a,), {}), ((b,), {})], "rank\\(s\\) 2 did not call all_reduce .sum, float32, count 8."),
        ([((a,), {"in_place": True}), ((b,), {}), ((c,), {})], "in_place differs"),
        ([((a.reshape(2, 4),), {}), ((b,), {}), ((c,), {})], "shape differs"),
        ([((np.empty((4, 0), np.float32),), {}), ((np.empty((5, 0), np.float32),), {}), ((np.empty((4, 0), np.float32),), {})],
         "shape differs"),
    ]  # fmt: skip
    for calls, match in cases:
        with pytest.raises(MismatchError, match=match):
            in_group(comm, *calls)
    with pytest.raises(MismatchError, match="2 sendbufs; expected one per rank, 3"):
        comm.all_reduce(vectors(2))
    # Nothing ran and nothing is left: the communicator still works.
    assert (comm.all_reduce([a, b, c]).outputs[0] == total([a, b, c])).all()


def test_a_group_runs_nothing_when_a_later_call_differs(comm: Communicator) -> None:
    x = vectors()
    with pytest.raises(MismatchError, match="collective 1"), comm.group():
        for r in range(3):
            comm.rank(r).all_reduce(x[r], in_place=True)
            comm.rank(r).all_reduce(x[r][: 4 + (r == 1)])
    assert (x[0] == np.arange(8)).all() and comm.seq == 0


def test_an_exception_in_a_group_runs_nothing(comm: Communicator) -> None:
    x = vectors()
    with pytest.raises(ZeroDivisionError), comm.group():
        comm.rank(0).all_reduce(x[0], in_place=True)
        raise ZeroDivisionError
    comm.all_reduce(x)


def test_usage(comm: Communicator) -> None:
    a, b, c = vectors()
    read_only = a.copy()
    read_only.flags.writeable = False
    cases = [
        (lambda: comm.rank(0).all_reduce(a), "outside a group"),
        (lambda: comm.rank(3), "rank = 3; expected an integer from 0 to 2"),
        (lambda: comm.all_reduce([a, b, [1.0]]), "rank 2: all_reduce: sendbuf: list is not an array"),
        (lambda: comm.all_reduce([v > 0 for v in (a, b, c)], op="avg"), "avg of bool is not supported; expected one of sum, prod, min, max, band"),
        (lambda: comm.all_reduce([v.astype("M8[s]") for v in (a, b, c)]), "element type datetime64.* is not supported"),
        (lambda: comm.all_reduce([v.astype(np.longdouble) for v in (a, b, c)]), "element type .* is not supported"),
        (lambda: comm.all_reduce([v.astype(np.complex64) for v in (a, b, c)], op="max"), "max of complex64 is not supported"),
        (lambda: comm.all_reduce([v.astype(">f4") for v in (a, b, c)]), "big-endian"),
        (lambda: comm.all_reduce([a, b, c], dtype="float8"), "dtype 'float8' is not supported"),
        (lambda: comm.all_reduce([a, b, c], dtype="float16"), "array is float32, dtype says float16"),
        (lambda: comm.all_reduce([a, b, c], op="mean"), "op 'mean' is not supported; expected one of sum, prod, min, max, avg"),
        (lambda: comm.all_reduce([a, b, c], op="band"), "band of float32 is not supported; expected one of sum, prod"),
        (lambda: comm.all_reduce([a, b, c], [a, b, c[:4]]), "recvbuf has shape"),
        (lambda: comm.all_reduce([a, b, c], [v.astype(np.float16) for v in (a, b, c)]), "recvbuf"),
        (lambda: comm.all_reduce([a[:4], b[:4], c[:4]], [a[2:6], b[2:6], c[2:6]]), "overlaps"),
        (lambda: comm.all_reduce([read_only, b, c], in_place=True), "read-only"),
        (lambda: comm.all_reduce([np.array([None])] * 3), "element type object is not supported"),
        (lambda: comm.all_reduce([np.ma.masked_array(v, v > 1) for v in (a, b, c)]), "a masked array, whose mask would be lost"),
        (lambda: comm.all_reduce([a, b, c], [np.lib.stride_tricks.as_strided(np.zeros(9, np.float32), (8,), (2,)) for _ in range(3)]),
         "elements of the array for the result overlap"),
        (lambda: comm.all_reduce([a, b, c], dtype=["float32"]), "dtype .'float32'. is not supported"),
        (lambda: comm.all_reduce(None), "sendbufs is a NoneType; expected one array per rank, in a list"),
        (lambda: comm.all_reduce([a, b, c], 5), "recvbufs is a int; expected one array per rank"),
        *((lambda d=d: comm.all_reduce([a, b, c], deadline=d), "deadline = .*; expected an integer of at least 1") for d in (0, -1, 1.5, "x", True)),
        (lambda: Communicator(comm.device, deadline=0), "deadline = 0; expected an integer of at least 1"),
        (lambda: comm.group(deadline="1"), "deadline = '1'; expected an integer"),
        (lambda: comm.rank(1.5), "rank = 1.5; expected an integer from 0 to 2"),
        *((lambda n=n: Communicator(comm.device, n), "a device of 3 nodes: nranks = .*; expected an integer from 1 to 3")
          for n in (0, -1, 4, 17, 300, 1.5, "2", True)),
        (lambda: open_device(None, TINY), "device None is not known"),
        (lambda: open_device("golden", "tiny"), "params is a str; expected spec.params.SystemParams"),
        (lambda: open_device("golden", TINY, stalls=0.1), r"device golden: unknown option\(s\) stalls; expected seed"),
        (lambda: open_device("rtl", TINY, stall=0.1), r"device rtl: unknown option\(s\) stall; expected seed, stalls, faults, waves, pcap, sim"),
        (lambda: open_device("golden", TINY, seed="x"), "seed = 'x'; expected an integer of at least 0"),
    ]
    for call, match in cases:
        with pytest.raises(UsageError, match=match):
            call()
    with comm.group(), pytest.raises(UsageError, match="already open"), comm.group():
        pass


def test_too_large_for_the_memory(comm: Communicator) -> None:
    with pytest.raises(UsageError, match="MemParams.size_bytes"):
        comm.all_reduce([np.zeros(1 << 20, np.float32)] * 3)
    comm.all_reduce(vectors())


def test_result(comm: Communicator) -> None:
    result = comm.all_reduce([np.ones(3000, np.float32)] * 3)
    assert result.nbytes == 12000 and result.bound_cycles > 2 * 2 * 4000 / 64
    assert result.cycles is None and result.algbw is None and result.busbw is None and result.percent_of_bound is None
    assert result.wqes["SEND"] == result.wqes["RECV"] == 2 * result.wqes["REDUCE"]
    assert all(c["nic_retransmits"] == 0 and c["nmc_busy"] > 0 for c in result.counters)


def test_deadline(comm: Communicator) -> None:
    with pytest.raises(CollectiveTimeout, match="collective 0 .*not done within 20 steps; not done: rank 0") as e:
        comm.all_reduce(vectors(count=5000), deadline=20)
    assert "queue 0" in e.value.state
    with pytest.raises(CollectiveError, match="aborted"):
        comm.all_reduce(vectors())
    again = Communicator(comm.device)  # all is flushed: the device serves a new one
    assert (again.all_reduce(vectors()).outputs[2] == total(vectors())).all()


def test_a_dead_queue_pair_is_named(comm: Communicator) -> None:
    comm.all_reduce(vectors())
    comm.device.write_reg(1, "qp_state", FIRST_QP, int(QpState.ERR))
    with pytest.raises(CollectiveError, match="rank 1 channel 0: .* ended in WR_FLUSH_ERR") as e:
        comm.all_reduce(vectors())
    assert "collective 1" in str(e.value)
    assert (Communicator(comm.device).all_reduce(vectors()).outputs[0] == total(vectors())).all()


def test_a_lost_region_is_named(comm: Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    load = comm.executor.load

    def broken(plan):
        lowered = load(plan)
        comm.device.write_reg(2, "mr_size", comm.executor.mrs[2]["scratch"].index, 0)
        return lowered

    monkeypatch.setattr(comm.executor, "load", broken)
    with pytest.raises(CollectiveError, match=r"failed: rank 2 channel 0: recv of chunk .* from rank 1, d scratch.0 at 0x(\w+), ended in LOC_PROT_ERR "
                       r"\(info 0x\1\)") as e:
        comm.all_reduce(vectors())
    assert "RETRY" not in str(e.value) and "queue" in e.value.state  # no timer ran: the others still wait


def test_close_and_reopen(comm: Communicator) -> None:
    with comm:
        comm.all_reduce(vectors())
    comm.close()
    for call in (lambda: comm.all_reduce(vectors()), lambda: in_group(comm, *(((v,), {}) for v in vectors()))):
        with pytest.raises(CollectiveError, match="the communicator was closed; expected a new one"):
            call()
    for _ in range(3):
        with Communicator(comm.device, 2) as c:
            c.all_reduce(vectors(2, 999))


def test_a_device_serves_one_communicator(comm: Communicator) -> None:
    comm.all_reduce(vectors(count=3000))
    with Communicator(comm.device) as later:
        later.all_reduce(vectors())
        with pytest.raises(CollectiveError, match="the communicator gave its device to one that was opened later; expected a new one"):
            comm.all_reduce(vectors())
        comm.close()  # takes nothing from the later one
        x = vectors(count=999)
        assert (later.all_reduce(x).outputs[1] == total(x)).all()
    assert not any(comm.device.read_reg(r, "mr_size", i) for r in range(3) for i in range(16))


def test_a_closed_device(comm: Communicator) -> None:
    for _ in range(2):
        comm.device.close()
    for call in (lambda: comm.all_reduce(vectors()), lambda: Communicator(comm.device)):
        with pytest.raises(DeviceError, match="device golden is closed; expected a new one"):
            call()
    comm.close()


def test_arrays_of_no_dimension(comm: Communicator) -> None:
    x = [np.array(r + 1, np.float32) for r in range(3)]
    assert [o.shape for o in comm.all_reduce(x).outputs] == [()] * 3 and comm.all_reduce(x, in_place=True).outputs[1] is x[1]
    assert [float(v) for v in x] == [6] * 3


@pytest.mark.parametrize("kw,match", [
    ({"stalls": 1.0}, "probability of stalls = 1.0; expected 0 <= p < 1"), ({"stalls": "a"}, "probability of stalls = 'a'"),
    ({"stalls": float("nan")}, "probability of stalls = nan"), ({"faults": {"loss": 0.1}}, "unknown fault 'loss'; known: drop, dup"),
    ({"faults": {"drop": "a"}}, "probability of drop = 'a'"), ({"faults": ["drop"]}, "expected a probability by kind"),
    ({"seed": 1.5}, "seed = 1.5; expected an integer"), ({"sim": "icarus"}, "got simulator 'icarus'"),
    ({"waves": "/dev/null/x.fst"}, "waves: /dev/null/x.fst: File exists"), ({"waves": "/tmp"}, "waves: /tmp: Is a directory"),
])  # fmt: skip
def test_rtl_options(kw: dict, match: str) -> None:
    """Refused before anything is built."""
    with pytest.raises(DeviceError, match=f"device rtl did not start: .*{match}"):
        open_device("rtl", TINY, **kw)


@pytest.mark.parametrize("hidden", ["g++", "perl", "verilator"])
def test_rtl_without_its_tools(hidden: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tb.chip import executor
    from tb.lib import simulators

    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, *a, **k: None if name == hidden else which(name, *a, **k))
    simulators.verilator_root.cache_clear()
    if hidden == "verilator":
        monkeypatch.setitem(sys.modules, "verilator", None)
    monkeypatch.setattr(simulators, "BUILD", tmp_path)
    builds = {  # the step of a build that needs it, without the minute that emission takes before
        "g++": lambda *a, **k: simulators.runtime(simulators.Options()),
        "perl": lambda *a, **k: simulators.translate("top", [], "", simulators.Options(), tmp_path),
        "verilator": lambda *a, **k: simulators.runtime(simulators.Options()),
    }
    monkeypatch.setattr(executor, "library", builds[hidden])
    with pytest.raises(DeviceError, match=f"device rtl did not start: .*{re.escape(hidden)}.*not (found|installed)") as e:
        open_device("rtl", TINY)
    assert "\n" not in str(e.value)


# -- rtl client -----------------------------------------------------------------------------------------------------


class SimTimeout(RuntimeError):
    pass


class SimFailure(RuntimeError):
    pass


class SimFault(RuntimeError):
    def __init__(self, state: str, queues: list[tuple[int, int]]):
        self.queues = queues
        super().__init__(state)


class SimService:
    """What the simulator service promises, on the golden system with a clock that counts steps."""

    def __init__(self, params: SystemParams, *, seed=0, stalls=0.0, faults=None, waves=None, pcap=None, sim="verilator"):
        if faults:
            raise RuntimeError("no build\nsecond line")
        self.system, self.closed, self.batches = System(params), 0, []

    def write_regs(self, writes):
        self.batches.append(writes)
        for w in writes:
            self.system.write_reg(*w)

    def read_regs(self, reads):
        return [self.system.read_reg(*r) for r in reads]

    def mem_write(self, node, addr, data):
        self.system.mem_write(node, addr, data)

    def mem_read(self, node, addr, n):
        return self.system.mem_read(node, addr, n)

    @property
    def cycles(self):
        return self.system.steps

    def run(self, events, deadline, watch=None):
        try:
            return self.system.run(deadline, watch=watch or ())
        except SystemFaulted as e:
            raise SimFault(str(e), e.queues) from None
        except SystemStalled as e:
            raise SimTimeout(str(e)) from None

    def close(self):
        self.closed += 1


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("tb.chip.service")
    for kind in (SimService, SimTimeout, SimFault, SimFailure):
        setattr(module, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, "tb.chip.service", module)


def test_rtl_client(service: None) -> None:
    device = open_device("rtl", TINY, seed=3, stalls=0.1)
    assert isinstance(device, RtlDevice)
    with device, Communicator(device) as comm:
        result = comm.all_reduce(vectors(4, 1000))
        assert (result.outputs[1] == total(vectors(4, 1000))).all()
        assert result.cycles and result.algbw == 4000 / result.cycles and result.busbw == result.algbw * 1.5
        assert result.percent_of_bound == 100 * result.bound_cycles / result.cycles and device.cycles >= result.cycles
        # One batch of doorbells: receives of all ranks, then the rest.
        bells = next(b for b in reversed(device._service.batches) if any(w[1] == "wq_tail" for w in b))
        nodes = [w[0] for w in bells]
        assert nodes == sorted(nodes[: len(nodes) // 2]) * 2
        with pytest.raises(CollectiveTimeout, match="within 10 cycles"):
            comm.all_reduce(vectors(4, 1000), deadline=10)
        inner = device._service

        def ends(*_: object) -> None:
            raise SimFailure("the simulator ended (code -9)")

        inner.mem_read, kept = ends, inner.mem_read
        with pytest.raises(DeviceError, match="device rtl failed: the simulator ended"):
            device.mem_read(0, 0, 4)
        inner.mem_read = kept
    assert inner.closed == 1
    with pytest.raises(DeviceError, match="is closed"):
        device.mem_read(0, 0, 4)


def test_rtl_that_does_not_start(service: None) -> None:
    with pytest.raises(DeviceError, match="did not start: no build"):
        open_device("rtl", TINY, faults={"drop": 0.1})


def test_rtl_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tb.chip.service", None)
    with pytest.raises(DeviceError, match="device rtl is not available.*expected the benches"):
        open_device("rtl", TINY)
