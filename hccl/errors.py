"""Every error the library raises on purpose; all derive from `HcclError`, so one `except` (the CLI's) turns each into one line."""
from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import SupportsIndex


class HcclError(Exception):
    """Base of the library's errors."""


class UsageError(HcclError, ValueError):
    """An argument that cannot work: what was given and what is expected."""


def integer(what: str, value: object, least: int, most: int | None = None) -> int:
    """`value` as an int.

    Raises:
        UsageError: not an integer (a bool is none) from `least` to `most`.
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or not least <= index(value) <= (index(value) if most is None else most):
        raise UsageError(f"{what} = {value!r}; expected an integer {f'of at least {least}' if most is None else f'from {least} to {most}'}")
    return index(value)


class PlanError(HcclError, ValueError):
    """A plan that cannot be run, found before anything runs.

    Args:
        what: what is wrong.
        expected: what would be right.
        rank, channel, index: the operation, where one can be named.
    """

    def __init__(
        self, what: str, expected: str, *, rank: int | None = None, channel: int | None = None, index: int | None = None
    ):
        self.what, self.expected = what, expected
        self.rank, self.channel, self.index = rank, channel, index
        where = ", ".join(
            f"{name} {v}" for name, v in (("rank", rank), ("channel", channel), ("op", index)) if v is not None
        )
        super().__init__(f"{where + ': ' if where else ''}{what}; expected {expected}")


class MismatchError(HcclError):
    """Ranks that asked for different things; names the ranks and what differs."""


class DeviceError(HcclError):
    """A device that is missing or answered something impossible."""


class DeviceTimeout(DeviceError):
    """The deadline passed before the expected events; `state` is the dump of queues and queue pairs."""

    def __init__(self, message: str, state: str = ""):
        self.state = state
        super().__init__(message + (f"\n{state}" if state else ""))


class DeviceFault(DeviceError):
    """A work queue went into error; `queues` are the (node, work queue) that were first, `state` as of DeviceTimeout."""

    def __init__(self, message: str, queues: Sequence[tuple[int, int]], state: str = ""):
        self.queues, self.state = tuple(queues), state
        super().__init__(message + (f"\n{state}" if state else ""))


class CollectiveError(HcclError):
    """A work-queue element ended in an error status; names the rank, the operation, its addresses and the status.

    `state` is the dump of queues where the device gave one.
    """

    def __init__(self, message: str, state: str = ""):
        self.state = state
        super().__init__(message + (f"\n{state}" if state else ""))


class CollectiveTimeout(HcclError):
    """A collective did not finish within its deadline; names the ranks that are behind, with the state of their queues."""

    def __init__(self, message: str, state: str = ""):
        self.state = state
        super().__init__(message + (f"\n{state}" if state else ""))
