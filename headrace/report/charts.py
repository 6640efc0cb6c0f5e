"""Line charts as inline SVG: series of (x, y) in, a string for an HTML page out.

Why not matplotlib: it would be one more runtime dependency, and its pictures have colours and fonts baked in (none of
them Japanese), so they neither follow the reader's dark mode nor show values under the pointer. What these pages need
of it (nice ticks, a log scale, phase boundaries) fits this file.

Colours and type come from CSS (`CSS` below, put once into the page); values under the pointer are CSS too, no script.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

MAX_POINTS = 1000  # drawn of a series
MAX_READOUTS = 120  # places of a chart that show their values under the pointer
WIDTH, HEIGHT = 560, 266
LEFT, RIGHT, TOP, BOTTOM = 50, 12, 44, 38  # margins around the plot
LABEL_ROWS = (TOP - 6, TOP - 19)  # heights of the names of boundaries, under the values shown at the pointer
LETTER = 6  # pixels a letter takes, on average, at 11 px

CSS = """
:root { --series-0: #2563eb; --series-1: #d9650a; --series-2: #0d8a6f; --series-3: #9333ea; }
@media (prefers-color-scheme: dark) {
  :root { --series-0: #6ea8ff; --series-1: #f5a35c; --series-2: #4fd1b0; --series-3: #c792fb; }
}
.chart { display: block; width: 100%; height: auto; font: 11px system-ui, sans-serif; overflow: visible; }
.chart text { fill: var(--muted); font-variant-numeric: tabular-nums; }
.chart .grid { stroke: var(--line); stroke-width: 1; }
.chart .axis { stroke: var(--muted); stroke-width: 1; }
.chart .name { paint-order: stroke; stroke: var(--card); stroke-width: 5px; }
.chart .phase { stroke: var(--muted); stroke-width: 1; stroke-dasharray: 4 4; }
.chart .level { stroke: var(--muted); stroke-width: 1; stroke-dasharray: 1 3; }
.chart polyline { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
.chart polyline.raw { stroke-width: 1; opacity: 0.35; }
.chart .readout rect { fill: transparent; }
.chart .readout > :not(rect) { opacity: 0; pointer-events: none; }
.chart .readout:hover > :not(rect) { opacity: 1; }
.chart .readout text { fill: var(--text); font-weight: 600; paint-order: stroke; stroke: var(--card);
  stroke-width: 5px; }
.chart .s0 { stroke: var(--series-0); } .chart circle.s0 { fill: var(--series-0); stroke: none; }
.chart .s1 { stroke: var(--series-1); } .chart circle.s1 { fill: var(--series-1); stroke: none; }
.chart .s2 { stroke: var(--series-2); } .chart circle.s2 { fill: var(--series-2); stroke: none; }
.chart .s3 { stroke: var(--series-3); } .chart circle.s3 { fill: var(--series-3); stroke: none; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; font-size: 12px; color: var(--muted); }
.legend i { display: inline-block; width: 14px; height: 3px; border-radius: 2px; margin: 0 6px 3px 0; }
"""

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """A line. Points rise in x and are finite."""

    name: str
    points: list[Point]
    dots: bool = False  # few points: show each
    smooth: bool = False  # many noisy points: draw them faint, and their running mean over them


def line_chart(
    series: Sequence[Series],
    *,
    percent: bool = False,
    log: bool = False,
    from_zero: bool = False,
    boundaries: Sequence[tuple[float, str]] = (),
    level: tuple[float, str] | None = None,
    last_x: float = 0.0,
    x_name: str = "step",
) -> str:
    """An SVG of up to four series from x = 0 to the last point or last_x; empty when none has a point.

    percent: shares shown as per cent. boundaries: (x, name of what starts there), dashed. level: (y, name), dotted.
    """
    series = [each for each in series if each.points and not (log and min(y for _, y in each.points) <= 0)]
    if not series:
        return ""
    factor = 100 if percent else 1
    lines = [[(x, y * factor) for x, y in each.points] for each in series]
    means = [running_mean(line) if each.smooth else [] for each, line in zip(series, lines, strict=True)]
    ys = [y for line in lines for _, y in line] + ([level[0] * factor] if level else [])
    x_of = _Scale(
        min(0.0, *(line[0][0] for line in lines)), max(last_x, *(line[-1][0] for line in lines)), LEFT, WIDTH - RIGHT
    )
    marked = [(x, name) for x, name in boundaries if x_of.holds(x)]
    low, high = min(ys), max(ys)
    y_of = _Scale(*_padded(low, high, log, from_zero), HEIGHT - BOTTOM, TOP, log)
    suffix = "%" if percent else ""

    parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    for y in y_of.ticks(5):
        at = y_of(y)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 7}" y="{at + 4:.1f}" text-anchor="end">{short(y)}{suffix}</text>')
    floor = HEIGHT - BOTTOM
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>')
    for x in x_of.ticks(6):
        parts.append(f'<text x="{x_of(x):.1f}" y="{floor + 16}" text-anchor="middle">{short(x)}</text>')
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 5}" text-anchor="middle">{escape(x_name)}</text>'
    )
    parts += _boundaries([(x_of(x), name) for x, name in marked])
    if level:
        at = y_of(level[0] * factor)
        parts.append(f'<line class="level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{WIDTH - RIGHT}" y="{at - 5:.1f}" text-anchor="end">{escape(level[1])}</text>')
    for i, (each, line, mean) in enumerate(zip(series, lines, means, strict=True)):
        parts.append(_polyline(line, x_of, y_of, f"s{i} raw" if mean else f"s{i}"))
        if mean:
            parts.append(_polyline(mean, x_of, y_of, f"s{i}"))
        if each.dots or len(line) == 1:
            parts += [f'<circle class="s{i}" cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3"/>' for x, y in thin(line)]
    parts += _readouts(series, lines, x_of, y_of, suffix, x_name)
    return "".join(parts) + "</svg>"


def legend(series: Sequence[Series]) -> str:
    """The names beside their colours; nothing for a single series, which the chart's title names."""
    shown = [each.name for each in series if each.points]
    if len(shown) < 2:
        return ""
    items = (f'<span><i style="background:var(--series-{i})"></i>{escape(name)}</span>' for i, name in enumerate(shown))
    return f'<div class="legend">{"".join(items)}</div>'


def thin(points: list[Point], most: int = MAX_POINTS) -> list[Point]:
    """At most `most` of the points: both ends, and the lowest and highest of each stretch, so that spikes stay."""
    if len(points) <= most:
        return points
    num_stretches = (most - 2) // 2
    inner = points[1:-1]
    kept = [points[0]]
    for i in range(num_stretches):
        stretch = inner[i * len(inner) // num_stretches : (i + 1) * len(inner) // num_stretches]
        kept += sorted({min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])})
    return [*kept, points[-1]]


def running_mean(points: list[Point], share: float = 0.03) -> list[Point]:
    """The mean over a centred window of `share` of the points, narrower at the ends; nothing for few points."""
    half = round(len(points) * share / 2)
    if half < 1:
        return []
    sums = [0.0]
    for _, y in points:
        sums.append(sums[-1] + y)
    means = []
    for i, (x, _) in enumerate(points):
        reach = min(half, i, len(points) - 1 - i)
        means.append((x, (sums[i + reach + 1] - sums[i - reach]) / (2 * reach + 1)))
    return means


def nice_ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers 1, 2 or 5 x 10^k apart that lie within low..high, roughly `about` of them."""
    raw = (high - low) / about
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten within low..high, with 2 and 5 times them (or every digit) where that leaves fewer than three."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for digits in ((1,), (1, 2, 5), (1, 2, 3, 4, 5, 6, 7, 8, 9)):
        ticks = [digit * 10.0**k for k in decades for digit in digits if low <= digit * 10.0**k <= high * (1 + 1e-9)]
        if len(ticks) >= 3:
            return ticks
    return nice_ticks(low, high, 6)


def short(value: float) -> str:
    """A number as an axis shows it: 0, 0.25, 12, 1,500, 20k, 3.5M, 4e-5."""
    size = abs(value)
    if size >= 1e15 or 0 < size < 9.99e-5:
        mantissa, exponent = f"{value:.2g}".split("e") if "e" in f"{value:.2g}" else f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= unit and size >= 10_000:
            return f"{value / unit:.4g}{name}"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.4g}"


class _Scale:
    """Maps low..high to pixels, linearly or by logarithm."""

    def __init__(self, low: float, high: float, start: float, stop: float, log: bool = False):
        if low == high:
            low, high = low - 1, high + 1
        self.low, self.high, self.start, self.stop, self.log = low, high, start, stop, log

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return self.start + (value - low) / (high - low) * (self.stop - self.start)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def ticks(self, about: int) -> list[float]:
        return log_ticks(self.low, self.high) if self.log else nice_ticks(self.low, self.high, about)


def _padded(low: float, high: float, log: bool, from_zero: bool) -> Point:
    """The range with a little air, never empty."""
    if log:
        ratio = max(high / low, 1.2) ** 0.06
        return low / ratio, high * ratio
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    air = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return (low if from_zero and low == 0 else low - air), high + air


def _polyline(points: list[Point], x_of: _Scale, y_of: _Scale, name: str) -> str:
    path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in thin(points))
    return f'<polyline class="{name}" points="{path}"/>'


def _boundaries(marked: Sequence[tuple[float, str]]) -> list[str]:
    """Dashed lines at pixels x, each with its name where no name before it is in the way; else under the pointer."""
    lines, names = [], []
    taken: dict[int, float] = dict.fromkeys(LABEL_ROWS, -math.inf)  # right end of the last name in each row
    for at, name in marked:
        width = LETTER * len(name)
        left = min(at, WIDTH - RIGHT - width)
        row = next((y for y, right in taken.items() if left > right + LETTER), None)
        top, floor = row + 3 if row else TOP, HEIGHT - BOTTOM
        line = f'<line class="phase" x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{floor}"/>'
        lines.append(f"<g><title>{escape(name)}</title>{line}</g>")
        if row:
            taken[row] = left + width
            names.append(f'<text class="name" x="{left:.1f}" y="{row}">{escape(name)}</text>')
    return lines + names


def _readouts(
    series: Sequence[Series], lines: list[list[Point]], x_of: _Scale, y_of: _Scale, suffix: str, x_name: str
) -> list[str]:
    """Invisible upright bands; the one under the pointer shows the values there, above the plot."""
    longest = max(lines, key=len)
    num = min(len(longest), MAX_READOUTS)
    places = [longest[round(i * (len(longest) - 1) / max(num - 1, 1))][0] for i in range(num)]
    floor = HEIGHT - BOTTOM
    parts = []
    for i, x in enumerate(places):
        at = x_of(x)
        left = (x_of(places[i - 1]) + at) / 2 if i else LEFT
        right = (at + x_of(places[i + 1])) / 2 if i + 1 < num else WIDTH - RIGHT
        values, dots = [], []
        for j, (each, line) in enumerate(zip(series, lines, strict=True)):
            y = _nearest(line, x)
            values.append(f"{each.name} {short(float(f'{y:.4g}'))}{suffix}")
            dots.append(f'<circle class="s{j}" cx="{at:.1f}" cy="{y_of(y):.1f}" r="3.5"/>')
        text = escape(f"{x_name} {x:,.0f}:  " + ",  ".join(values))
        parts.append(
            f'<g class="readout"><rect x="{left:.1f}" y="{TOP}" width="{right - left:.1f}" height="{floor - TOP}"/>'
            f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{floor}"/>{"".join(dots)}'
            f'<text x="{WIDTH - RIGHT}" y="12" text-anchor="end">{text}</text></g>'
        )
    return parts


def _nearest(line: list[Point], x: float) -> float:
    i = min(bisect_left(line, (x, -math.inf)), len(line) - 1)
    return line[i - 1][1] if i and x - line[i - 1][0] < line[i][0] - x else line[i][1]
