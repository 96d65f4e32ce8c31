"""Line plots as SVG text, for the documentation. Colours that are readable on light and on dark ground."""

import math
from collections.abc import Sequence
from html import escape

import msgspec

WIDTH, HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 150, 20, 52
_COLOURS = ("#3b82f6", "#f97316", "#10b981", "#a855f7", "#ef4444", "#eab308", "#64748b", "#06b6d4", "#ec4899")
_LINE_HEIGHT = 16
_STYLE = "font:12px system-ui,sans-serif;fill:#7d8590"


class Curve(msgspec.Struct, frozen=True):
    """One line."""

    name: str
    points: list[tuple[float, float]]
    """(x, y); x above 0."""


class Scale(msgspec.Struct, frozen=True):
    """From figures to pixels; x is logarithmic, y starts at 0."""

    least_x: float
    most_x: float
    most_y: float

    def x(self, value: float) -> float:
        span = math.log(self.most_x / self.least_x) or 1.0
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * math.log(value / self.least_x) / span

    def y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * value / self.most_y


def line_plot(curves: Sequence[Curve], x_title: str, y_title: str) -> str:
    """An SVG document. ValueError without a point."""
    points = [point for curve in curves for point in curve.points]
    if not points:
        raise ValueError("expected at least one point")
    xs = sorted({x for x, _ in points})
    step = _step(max(y for _, y in points))
    scale = Scale(xs[0], xs[-1], step * math.ceil(max(y for _, y in points) / step or 1))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(y_title)} over {escape(x_title)}">',
        *_grid(scale, xs, step),
        f'<text x="{_LEFT}" y="{HEIGHT - 10}" style="{_STYLE}">{escape(x_title)}</text>',
        f'<text x="14" y="{HEIGHT - _BOTTOM}" transform="rotate(-90 14 {HEIGHT - _BOTTOM})" style="{_STYLE}">'
        f"{escape(y_title)}</text>",
        *(_curve(curve, scale, at) for at, curve in enumerate(curves)),
        *_curve_labels(curves, scale),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _step(largest: float) -> float:
    """Between two lines of the grid: 1, 2 or 5 times a power of ten, for four to ten lines."""
    power = 10.0 ** math.floor(math.log10(largest or 1.0))
    return next((power * part for part in (0.1, 0.2, 0.5) if largest / (power * part) <= 9), power)


def _grid(scale: Scale, xs: Sequence[float], step: float) -> list[str]:
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    parts = []
    for number in range(round(scale.most_y / step) + 1):
        y = scale.y(number * step)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#7d8590" stroke-opacity=".25"/>')
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" style="{_STYLE}">{number * step:.2g}</text>'
        )
    parts += [
        f'<text x="{scale.x(x):.1f}" y="{bottom + 18}" text-anchor="middle" style="{_STYLE}">{x:g}</text>' for x in xs
    ]
    return parts


def _curve(curve: Curve, scale: Scale, at: int) -> str:
    points = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in curve.points)
    colour = _COLOURS[at % len(_COLOURS)]
    dashes = ' stroke-dasharray="6 4"' if "+" in curve.name else ""
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'


def _curve_labels(curves: Sequence[Curve], scale: Scale) -> list[str]:
    """A name for each line, in the sequence of the lines' heights at half the width."""
    middle = scale.least_x * math.sqrt(scale.most_x / scale.least_x)

    def height(numbered: tuple[int, Curve]) -> float:
        return -min(numbered[1].points, key=lambda point: abs(math.log(point[0] / middle)), default=(0, 0))[1]

    parts = []
    for row, (at, curve) in enumerate(sorted(enumerate(curves), key=height)):
        x, y = WIDTH - _RIGHT + 16, _TOP + 12 + row * _LINE_HEIGHT
        colour = _COLOURS[at % len(_COLOURS)]
        parts.append(f'<path d="M{x} {y - 4}h18" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{x + 24}" y="{y}" style="{_STYLE}">{escape(curve.name)}</text>')
    return parts
