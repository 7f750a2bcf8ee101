"""HCCL: collectives as proved plans, run on golden or simulated chips by the same calls."""
from hccl.communicator import Communicator, Result
from hccl.devices import open_device

__all__ = ["Communicator", "Result", "open_device"]
