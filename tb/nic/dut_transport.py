"""Transport with small limits, so that windows fill, queues wrap and retries run out within a short test."""
from __future__ import annotations

from rtl.nic.transport import Transport
from spec.params import MemParams, NicParams


def params(nic: NicParams) -> NicParams:
    return nic.replace(mtu=256, window=8, ack_every=4, sq_depth=8, rq_depth=8, timeout=1024, retries=2, rnr_timer=256, rnr_retries=2)


def small_transport(nic: NicParams, mem: MemParams) -> Transport:
    return Transport(params(nic), mem)


def patient_transport(nic: NicParams, mem: MemParams) -> Transport:
    """Its timers never run out, so what it sends depends on what it is given alone."""
    return Transport(patient(nic), mem)


def patient(nic: NicParams) -> NicParams:
    return params(nic).replace(qps=16, mrs=16, timeout=1 << 20, rnr_timer=1 << 20)
