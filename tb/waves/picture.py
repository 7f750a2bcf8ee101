"""A timing picture of a window of a trace: per stream what its handshake did in each cycle, and its payload's fields as text.

Left out: streams without a word in the window, fields that are always 0, pins that do not change.
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tb.lib.simulators import MissingTool
from tb.waves.signals import Group, Row, View
from tb.waves.trace import Trace, Value

SPAN = 56  # cycles of the default window
CLOSE = 22  # … where at SPAN too many texts would be cut off: boxes of one cycle then hold eight digits
CUT_OFF = 0.4  # share of texts that may be
ONES = "all ones"
INCH, LEFT, RIGHT, WIDTH, SIZE = 0.21, 1.75, 0.15, 14.0, 7.2  # of the picture: a lane, margins, width, points of a text
GLYPH = SIZE / 72 * 0.61  # width of a character of the monospaced font, inches
LEAD = 3  # cycles before the first transfer
WIDE = 64  # of a wider field the picture shows the low 32 bits

TRANSFER, STALL, READY, UNKNOWN = "#3aa76d", "#f2b134", "#dfe7e3", "#d64545"
BOX, NAMED, EDGE, TEXT, DIM = "#e3eefb", "#efe4f7", "#7c93ad", "#1d2733", "#7a8794"


@dataclass(frozen=True, kw_only=True)
class Window:
    """Cycles ``first .. last`` (counted from the first clock edge of the trace, 0), and the times that show their values."""

    first: int
    last: int
    times: tuple[int, ...]


def _streams(view: View) -> list[Group]:
    return [g for g in view.groups if g.valid and g.ready]


def _is(trace: Trace, r: Row | None, time: int) -> bool:
    return r is not None and trace.at(r.signal, time) == 1


def window(view: View, trace: Trace, first: int | None = None, last: int | None = None) -> Window:
    """The window asked for; by default `SPAN` cycles from just before the first word that moved after reset, `CLOSE` where the texts of so many
    would be cut off.

    Raises:
        ValueError: an empty window, or nothing in the trace.
    """
    edges = trace.edges(view.clock.signal)
    before = [max(0, e - 1) for e in edges]  # what an edge takes is what stood before it
    if not edges:
        raise ValueError(f"{trace.path}: the clock {view.clock.signal} never rises")
    if first is None:
        active = (c for c, t in enumerate(before) if not _is(trace, view.reset, t) and any(
            _is(trace, g.valid, t) and _is(trace, g.ready, t) for g in _streams(view)))
        first = max(0, next(active, 0) - LEAD)
    end = min(len(edges) - 1, last if last is not None else first + SPAN - 1)
    if not 0 <= first < end:
        raise ValueError(f"window of cycles {first} to {end}: the trace has cycles 0 to {len(edges) - 1}")
    w = Window(first=first, last=end, times=tuple(before[first : end + 1]))
    if last is None and first + CLOSE <= end and _cut_off(view, trace, w) > CUT_OFF:
        w = Window(first=first, last=first + CLOSE - 1, times=w.times[:CLOSE])
    return w


def _cut_off(view: View, trace: Trace, w: Window) -> float:
    """Share of the texts that do not fit in their boxes."""
    boxes = [(lane.room(k, len(w.times)) * _cycle(w), m[2]) for lane in _lanes(view, trace, w) if lane.kind == "field" for k, m in enumerate(lane.marks)]
    return sum(GLYPH * len(text) > room for room, text in boxes) / len(boxes) if boxes else 0.0


def _cycle(w: Window) -> float:
    """Inches of a cycle."""
    return (WIDTH - LEFT - RIGHT) / (w.last - w.first + 1)


def _text(r: Row, value: Value | None) -> str:
    if value is None or isinstance(value, str):
        return "X"
    v = r.of(value)
    name = dict(r.names).get(v)
    if name is not None:
        return name
    if r.bits > 32 and v == (1 << r.bits) - 1:
        return ONES
    if r.bits > WIDE:
        return f"…{v & 0xFFFFFFFF:08x}"
    return f"{v:x}"


def _runs(items: list) -> list[tuple[int, int, object]]:
    """(start, end, item) of runs of equal items."""
    out: list[tuple[int, int, object]] = []
    for i, x in enumerate(items):
        if out and out[-1][2] == x and x is not None:
            out[-1] = (out[-1][0], i + 1, x)
        else:
            out.append((i, i + 1, x))
    return [r for r in out if r[2] is not None]


def _words(valid: list[bool], moved: list[bool]) -> list[tuple[int, int]]:
    """(start, end) of every word: from the cycle it is offered to the one that takes it."""
    out, start = [], None
    for i, v in enumerate(valid):
        if v and start is None:
            start = i
        if start is not None and (moved[i] or not v):
            out.append((start, i + 1 if v else i))
            start = None
    if start is not None:
        out.append((start, len(valid)))
    return out


@dataclass
class _Lane:
    label: str
    kind: str  # handshake, field, level, note
    marks: list[tuple[int, int, str, str]]  # start, end, text, colour
    note: str = ""  # fields that have one value in the window
    at: int = 0  # where the note is written

    def room(self, k: int, end: int) -> int:
        """Cycles in which the text of mark `k` may stand: up to the next one."""
        return (self.marks[k + 1][0] if k + 1 < len(self.marks) else end) - self.marks[k][0]


def _lanes(view: View, trace: Trace, w: Window) -> list[_Lane]:
    lanes: list[_Lane] = []
    if any(_is(trace, view.reset, t) for t in w.times):
        lanes.append(_level(view.reset, trace, w))
    for g in view.groups:
        if not (g.valid and g.ready):
            for r in g.rows:
                if len({trace.at(r.signal, t) for t in w.times}) == 1:
                    continue
                if r.bits == 1:
                    lanes.append(_level(r, trace, w))
                else:
                    texts = [_text(r, trace.at(r.signal, t)) for t in w.times]
                    lanes.append(_Lane(r.label, "field", [(a, b, str(x), _colour(r, str(x))) for a, b, x in _runs(texts)]))
            continue
        raw = [(trace.at(g.valid.signal, t), trace.at(g.ready.signal, t)) for t in w.times]
        valid = [v == 1 for v, _ in raw]
        moved = [v == 1 and r == 1 for v, r in raw]
        if not any(valid):
            continue
        state = [
            UNKNOWN if isinstance(v, str) or isinstance(r, str) else TRANSFER if v and r else STALL if v else READY if r else None
            for v, r in raw
        ]
        lane = _Lane(g.title, "handshake", [(a, b, "", str(c)) for a, b, c in _runs(state)])
        lanes.append(lane)
        words = _words(valid, moved)
        fixed = []
        for r in g.rows:
            texts = [_text(r, trace.at(r.signal, w.times[a])) for a, _ in words]
            seen = set(texts)
            if len(seen) == 1 and (len(texts) > 1 or seen == {"0"}):
                if not seen <= {"0", "…00000000"}:
                    fixed.append(f"{r.label} {texts[0]}")
                continue
            lanes.append(_Lane(r.label, "field", _joined([(a, b, x, _colour(r, x)) for (a, b), x in zip(words, texts)])))
        lane.note = " · ".join(fixed)
    return lanes


def _joined(marks: list[tuple[int, int, str, str]]) -> list[tuple[int, int, str, str]]:
    """Boxes that touch and hold the same text become one (the handshake lane tells the words apart)."""
    out: list[tuple[int, int, str, str]] = []
    for m in marks:
        if out and out[-1][1] == m[0] and out[-1][2] == m[2]:
            m = (out.pop()[0], *m[1:])
        out.append(m)
    return out


def _colour(r: Row, text: str) -> str:
    return UNKNOWN if text == "X" else NAMED if r.names else BOX


def _level(r: Row, trace: Trace, w: Window) -> _Lane:
    values = [trace.at(r.signal, t) for t in w.times]
    bits = [None if v is None or isinstance(v, str) else r.of(v) for v in values]
    return _Lane(r.label, "level", [(a, b, str(v), TRANSFER) for a, b, v in _runs(bits)])


def draw(view: View, trace: Trace, w: Window, out: Path, title: str) -> Path:
    """Write the picture.

    Raises:
        MissingTool: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as e:
        raise MissingTool("the Python package matplotlib is not installed; `make setup` installs it (extra: waves)") from e
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch, Rectangle

    n = w.last - w.first + 1
    head, foot = 0.75, 0.2
    cycle = _cycle(w)
    lanes = []
    for lane in _lanes(view, trace, w):
        at = _gap(lane, n, len(lane.note) * GLYPH * 0.95 / cycle)
        lanes.append(lane)
        if lane.note and at is None:
            lanes.append(_Lane("always", "note", [], lane.note))
            lane.note = ""
        lane.at = at or 0
    gap = 0.45  # above a stream
    tops, y = [], 0.0
    for i, lane in enumerate(lanes):
        y += gap if i and lane.kind not in ("field", "note") else 0.0
        tops.append(y)
        y += 1.0
    height = head + foot + INCH * y
    fig = plt.figure(figsize=(WIDTH, height), dpi=110)
    ax = fig.add_axes((LEFT / WIDTH, foot / height, 1 - (LEFT + RIGHT) / WIDTH, INCH * y / height))
    ax.set_xlim(0, n)
    ax.set_ylim(y, 0)
    ax.axis("off")
    mono = dict(family="DejaVu Sans Mono", fontsize=SIZE, va="center", clip_on=True)
    step = 5 if n <= 100 else 10 if n <= 250 else 50
    for c in range(-(-w.first // step) * step, w.last + 1, step):
        ax.plot([c - w.first] * 2, [0, y], color="#e9edf1", lw=0.7, zorder=0)
        ax.text(c - w.first, -0.35, str(c), fontsize=6.8, color=DIM, ha="left", va="bottom")
    for lane, at in zip(lanes, tops):
        mid = at + 0.5
        first = lane.kind not in ("field", "note")
        ax.text(-0.1 / cycle, mid, lane.label, ha="right", va="center", fontsize=8 if first else 7.2,
                color=TEXT if first else DIM, weight="bold" if lane.kind == "handshake" else "normal")
        if lane.kind == "level":
            xs = [x for a, b, *_ in lane.marks for x in (a, b)]
            ys = [mid + 0.28 - 0.56 * (v == "1") for _, _, v, _ in lane.marks for _ in (0, 1)]
            ax.plot(xs, ys, color=TRANSFER, lw=1.2, solid_joinstyle="miter")
            for a, b, v, _ in lane.marks:
                if v == "1":
                    ax.add_patch(Rectangle((a, mid - 0.28), b - a, 0.56, color=TRANSFER, alpha=0.18, lw=0))
            continue
        for k, (a, b, text, colour) in enumerate(lane.marks):
            if lane.kind == "handshake":
                thin = colour == READY
                ax.add_patch(Rectangle((a, mid - (0.08 if thin else 0.32)), b - a, 0.16 if thin else 0.64, color=colour, lw=0, zorder=2))
                if colour == TRANSFER:  # a tick per word
                    ax.vlines(range(a + 1, b), mid - 0.32, mid + 0.32, color="white", lw=0.5, zorder=3)
                continue
            ax.add_patch(Rectangle((a, mid - 0.4), b - a, 0.8, facecolor=colour, edgecolor=EDGE, lw=0.5, zorder=2))
            text = _fit(text, int((lane.room(k, n) * cycle - 0.03) / GLYPH), colour == NAMED)
            ax.text(a + 0.025 / cycle, mid + 0.03, text, color=TEXT, zorder=4, **mono)
        if lane.note:
            ax.text(lane.at + 0.06 / cycle, mid, lane.note, fontsize=6.6, color=DIM, va="center", zorder=5,
                    bbox=dict(facecolor="white", edgecolor="none", pad=0.6))
    fig.text(LEFT / WIDTH, 1 - 0.2 / height, title, fontsize=10, weight="bold", color=TEXT, va="center")
    fig.legend(
        handles=[Patch(color=TRANSFER, label="word moves"), Patch(color=STALL, label="valid, waits for ready"), Patch(color=READY, label="ready, no word"),
                 Patch(facecolor=BOX, edgecolor=EDGE, lw=0.5, label="field (hex)"), Patch(facecolor=NAMED, edgecolor=EDGE, lw=0.5, label="field (by name)")],
        loc="upper right", bbox_to_anchor=(1 - RIGHT / WIDTH, 1 - 0.04 / height), ncols=5, frameon=False, fontsize=7.2, handlelength=1.2, borderpad=0.2,
        columnspacing=1.2, borderaxespad=0,
    )
    ax.text(-0.1 / cycle, -0.35, "cycle", fontsize=6.8, color=DIM, ha="right", va="bottom")
    out.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(out, pil_kwargs={"optimize": True})
    plt.close(fig)
    return out


def _fit(text: str, room: int, named: bool) -> str:
    """`text` in `room` characters: numbers keep their last digits, names their first letter and number (BFLOAT16: B16)."""
    if len(text) <= room:
        return text
    if named:
        digits = re.search(r"\d*$", text)[0]  # type: ignore[index]
        return text[0] + digits if digits and len(digits) < room else text[:room]
    if text == ONES:
        return "ones" if room >= 4 else ""
    return "…" + text.lstrip("…")[1 - room:] if room >= 3 else ""


def _gap(lane: _Lane, n: int, need: float) -> int | None:
    """Start of the longest stretch of a handshake lane without a word, if it is `need` cycles long."""
    busy = sorted((a, b) for a, b, _, c in lane.marks if c != READY)
    gaps = zip([0, *(b for _, b in busy)], [*(a for a, _ in busy), n])
    start, end = max(gaps, key=lambda g: g[1] - g[0])
    return start if end - start > need else None
