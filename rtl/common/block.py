# amaranth: UnusedElaboratable=no
"""Base class of every hardware block, and elaboration of equal blocks only once.

A block is the same module whenever its class and constructor arguments are the same; :func:`shared` lets the
emitter elaborate it once and instantiate it many times. In Amaranth's own simulator `shared` has no effect.
"""
from __future__ import annotations

from typing import Any

from amaranth.hdl import ClockSignal, Elaboratable, Instance, ResetSignal
from amaranth.lib import wiring
from amaranth.lib.wiring import In


class Block(wiring.Component):
    """A component whose identity is its class and constructor arguments (which must be hashable and have a stable repr)."""

    def __new__(cls, *args: Any, **kwargs: Any) -> "Block":
        self = super().__new__(cls)
        self.block_key = (f"{cls.__module__}.{cls.__qualname__}", args, tuple(sorted(kwargs.items())))
        return self

    def __reduce__(self):
        _, args, kwargs = self.block_key
        return (_rebuild, (type(self), args, kwargs))


def _rebuild(cls, args, kwargs):
    return cls(*args, **dict(kwargs))


class _Shared(Elaboratable):
    def __init__(self, block: Block):
        self._block = block

    def elaborate(self, platform):
        register = getattr(platform, "shared_module", None)
        if register is None:
            return self._block
        ports: dict[str, Any] = {"i_clk": ClockSignal(), "i_rst": ResetSignal()}
        for path, member, value in self._block.signature.flatten(self._block):
            name = "__".join(str(p) for p in path)
            ports[("i_" if member.flow is In else "o_") + name] = value
        self._block._MustUse__silence = True  # elaborated by the emitter, on its own
        return Instance(register(self._block), **ports)


def shared(block: Block) -> Elaboratable:
    """`m.submodules.x = shared(x)`: use instead of `m.submodules.x = x` for blocks that occur more than once."""
    return _Shared(block)
