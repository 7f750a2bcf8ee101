"""Machines the library runs on, by name: `golden` and `rtl`. Each is imported when asked for."""
from __future__ import annotations

from typing import Any

from hccl.devices.base import Device
from hccl.errors import UsageError
from spec.params import SystemParams

KINDS = ("golden", "rtl")


def open_device(kind: str, params: SystemParams, **options: Any) -> Device:
    """Device of `kind`; `options` as its constructor takes.

    Raises:
        UsageError: no such kind. DeviceError: it cannot run here.
    """
    if not isinstance(params, SystemParams):
        raise UsageError(f"params is a {type(params).__name__}; expected spec.params.SystemParams, as config(name) gives")
    known = {"golden": ("seed", "pcap"), "rtl": ("seed", "stalls", "faults", "waves", "pcap", "sim")}.get(kind) if isinstance(kind, str) else None
    unknown = [o for o in options if known is not None and o not in known]
    if unknown and known is not None:
        raise UsageError(f"device {kind}: unknown option(s) {', '.join(unknown)}; expected {', '.join(known)}")
    if kind == "golden":
        from hccl.devices.golden import GoldenDevice

        return GoldenDevice(params, **options)
    if kind == "rtl":
        from hccl.devices.rtl import RtlDevice

        return RtlDevice(params, **options)
    raise UsageError(f"device {kind!r} is not known; expected one of {', '.join(KINDS)}")
