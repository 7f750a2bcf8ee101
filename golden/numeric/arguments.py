"""What the golden models are given, checked: arrays, shapes that go together, integers, names. Every refusal names the argument and what was expected."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def array(x: Any, name: str) -> NDArray[Any]:
    """`x` as an array of numbers.

    Raises:
        TypeError: rows of different lengths, or something that is no number.
    """
    try:
        a = np.asarray(x)
    except (ValueError, TypeError, OverflowError) as e:
        raise TypeError(f"{name}: expected an array of numbers ({e})") from None
    if a.dtype.kind not in "biufc":
        raise TypeError(f"{name}: expected an array of numbers, not of {a.dtype} ({x!r:.60})")
    return a


def together(what: str, **given: NDArray[Any]) -> tuple[int, ...]:
    """The shape to which the arrays broadcast.

    Raises:
        ValueError: there is none.
    """
    try:
        return np.broadcast_shapes(*(a.shape for a in given.values()))
    except ValueError:
        shapes = ", ".join(f"{n} of shape {a.shape}" for n, a in given.items())
        raise ValueError(f"{what}: {shapes}; expected shapes that broadcast to one") from None


def integer(x: Any, name: str, low: int | None = None, high: int | None = None) -> int:
    """`x` as a Python integer from `low` to `high`.

    Raises:
        TypeError: no integer. ValueError: out of range.
    """
    if not isinstance(x, int | np.integer) or isinstance(x, bool):
        raise TypeError(f"{name} = {x!r}; expected an integer")
    if (low is not None and x < low) or (high is not None and x > high):
        bounds = f"from {low} to {high}" if high is not None and low is not None else f"at least {low}" if high is None else f"at most {high}"
        raise ValueError(f"{name} = {x}; expected an integer {bounds}")
    return int(x)


def one_of(x: Any, known: Iterable[Any], name: str) -> Any:
    """`x`, one of `known`.

    Raises:
        ValueError: it is not.
    """
    known = tuple(known)
    if isinstance(x, str | int | np.integer) and not isinstance(x, bool) and x in known:
        return x
    raise ValueError(f"{name} {x!r}; expected one of {', '.join(str(k) for k in known)}")


def typed(x: Any, name: str, shape: tuple[int, ...] | None = None, dtype: str = "uint8") -> NDArray[Any]:
    """`x`, an array of exactly that element type and shape (None: one dimension of any length).

    Raises:
        TypeError: of another type. ValueError: of another shape.
    """
    a = array(x, name)
    if a.dtype != dtype:
        raise TypeError(f"{name} of type {a.dtype}; expected {dtype}")
    if a.shape != shape and not (shape is None and a.ndim == 1):
        raise ValueError(f"{name} of shape {a.shape}; expected {shape or 'one dimension'}")
    return a


def fields(given: Mapping[str, Any], names: Iterable[str], what: str) -> None:
    """The fields that a job must have, integers from 0 on.

    Raises:
        ValueError: one is missing or negative. TypeError: one is no integer.
    """
    for name in names:
        if name not in given:
            raise ValueError(f"{what} without {name}; it has {', '.join(given) or 'nothing'}")
        integer(given[name], f"{what}: {name}", 0)
