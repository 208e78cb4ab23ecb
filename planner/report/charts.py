"""The charts of the page: each turns a plan into one drawing, with a tip for every part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from planner.plan import LayerPlan, Plan
from planner.report import figures, rivals, svg
from planner.report.runs import LayerRun

WIDTH = 1080.0
# Strategies that take longer than so many times the plan are cut off in the chart.
LONGEST_RIVAL = 6.0
_MARGIN = 58.0


def split_index(key: str) -> int:
    """Number of a split from its letter, the inverse of `runs.letter`."""
    number = 0
    for character in key:
        number = number * 26 + ord(character) - ord("A") + 1
    return number - 1


def step_chart(plan: Plan) -> Markup:
    """The step by cause, and the communication that is hidden below it."""
    parts = [
        svg.Part(
            value=row.value,
            fill=f"c-{row.key}",
            tip=f"{row.label}: {figures.seconds(row.value)}, {figures.percent(row.share)}",
            text=f"{row.label} {figures.percent(row.share)}",
        )
        for row in figures.step_rows(plan)
    ]
    rows = [row for row in figures.hidden_rows(plan) if row[2] > 0.0]
    hidden = sum(seconds for _, _, seconds in rows)
    whole = max(plan.step_time_s, hidden)
    drawn = [svg.stacked(0, 4, WIDTH, 44, parts, whole)]
    height, at = 74.0, 0.0
    for cause, label, seconds in rows:
        tip = f"{label}: {figures.seconds(seconds)}, behind"
        extent = WIDTH * seconds / whole
        drawn.append(svg.rectangle(at, 52, extent, 14, f"c-{cause} hatch", tip))
        at += extent
    if rows:
        text = ", ".join(f"{label} {figures.seconds(seconds)}" for _, label, seconds in rows)
        if at + len(text) * svg.CHARACTER + 8 < WIDTH:
            drawn.append(svg.text(at + 6, 63, text, "small"))
        height = 92.0
    drawn += _time_axis(0, WIDTH, height - 22, whole)
    label = "Stacked bar of the step by cause: " + "; ".join(part.tip for part in parts)
    return svg.drawing(WIDTH, height, label, drawn)


def _time_axis(x: float, width: float, y: float, whole: float) -> list[Markup]:
    """Ticks in time below a bar."""
    drawn = [svg.line(x, y, x + width, y, "axis")]
    for tick in svg.nice_ticks(whole, 8):
        at = x + width * tick / whole
        kind = "small" if tick == 0 else "end" if at > x + width - 20 else "middle"
        drawn.append(svg.line(at, y, at, y + 4, "axis"))
        drawn.append(svg.text(at, y + 16, figures.seconds(tick), kind))
    return drawn


def memory_chart(plan: Plan) -> Markup:
    """Peak memory by holder against the capacity."""
    rows = figures.memory_rows(plan)
    capacity = plan.memory_capacity_bytes
    whole = max(plan.peak_memory, capacity)
    parts = [
        svg.Part(
            value=row.value,
            fill=f"m-{row.key}",
            tip=f"{row.label}: {figures.size(row.value)}, {figures.percent(row.share)}",
            text=f"{row.label} {figures.size(row.value)}",
        )
        for row in rows
    ]
    if plan.fits:
        free = capacity - plan.peak_memory
        text = f"free {figures.size(free)}"
        parts.append(svg.Part(value=free, fill="m-free", tip=text, text=text, ink="middle"))
    at = WIDTH * capacity / whole
    drawn = [
        svg.stacked(0, 20, WIDTH, 44, parts, whole),
        svg.line(at - 1, 14, at - 1, 70, "limit"),
        svg.text(at - 6, 12, f"capacity {figures.size(capacity)}", "end"),
    ]
    label = "Stacked bar of peak memory by holder: " + "; ".join(part.tip for part in parts)
    return svg.drawing(WIDTH, 74, label, drawn)


def _describe(layer: LayerPlan, run: LayerRun, count: int) -> str:
    """The tip of a layer, which is there so many times."""
    causes = [
        f"{label} {figures.seconds(getattr(layer, f'{key}_s'))}"
        for key, label in figures.LAYER_CAUSES.items()
        if getattr(layer, f"{key}_s") > 0.0
    ]
    if layer.gradient_s > 0.0:
        causes.append(f"gradient all-reduce {figures.seconds(layer.gradient_s)}")
    return (
        f"{layer.name} ({layer.kind}){f' x {count}' if count > 1 else ''}\n{run.key}: {run.label}\n"
        f"{figures.seconds(layer.time)}: {', '.join(causes) or 'no cost'}"
    )


def band_chart(runs: Sequence[LayerRun], counts: Mapping[str, int]) -> Markup:
    """The network as a band in the order of the forward pass, as wide as layers take time.

    Parameters
    ----------
    runs
        What is drawn.
    counts
        How often each layer is there.
    """
    whole = sum(layer.time * counts[layer.name] for run in runs for layer in run.layers)
    if not whole > 0.0:
        return Markup()
    drawn, at = [], 0.0
    for run in runs:
        fill, start = svg.fill_of(split_index(run.key)), at
        for layer in run.layers:
            count = counts[layer.name]
            extent, tip = WIDTH * layer.time * count / whole, _describe(layer, run, count)
            gap = 0.75 if extent > 3.0 else 0.0
            drawn.append(svg.rectangle(at, 24, extent - gap, 46, fill, tip))
            at += extent
        extent = at - start
        if extent >= 14.0:
            drawn.append(svg.text(start + extent / 2, 51, run.key, "inside key"))
        name = svg.cut(run.layers[0].name, extent - 4)
        if name:
            drawn.append(svg.line(start + 0.5, 8, start + 0.5, 24, "axis"))
            drawn.append(svg.text(start + 4, 16, name, "small"))
    drawn += _time_axis(0, WIDTH, 74, whole)
    label = "Layers in the order of the forward pass, wide by time: " + "; ".join(
        f"{run.span}: {run.key}" for run in runs[:40]
    )
    return svg.drawing(WIDTH, 94, label, drawn)


def layers_chart(runs: Sequence[LayerRun], counts: Mapping[str, int]) -> Markup:
    """Time of every layer by cause upwards, its gradient all-reduce downwards.

    Parameters
    ----------
    runs
        What is drawn.
    counts
        How often each layer is there.
    """
    rows = [(layer, run) for run in runs for layer in run.layers]
    longest = max(layer.time for layer, _ in rows)
    if not longest > 0.0:
        return Markup()
    pitch = min(max((WIDTH - _MARGIN) / len(rows), 6.5), 28.0)
    width = max(_MARGIN + pitch * len(rows), 400.0)
    scale = 230.0 / longest
    below = min(max(layer.gradient_s for layer, _ in rows) * scale, 110.0)
    zero, strip = 240.0, 240.0 + below + 6.0
    drawn = _vertical_axis(width, zero, longest, scale, below)
    every = int(-(-11.0 // pitch))
    for i, (layer, run) in enumerate(rows):
        x, tip = _MARGIN + i * pitch, _describe(layer, run, counts[layer.name])
        thick = pitch - 1.0
        y = zero
        bars = Markup()
        for key in figures.LAYER_CAUSES:
            height = getattr(layer, f"{key}_s") * scale
            y -= height
            if height > 0.0:
                bars += svg.rectangle(x, y, thick, height, f"c-{key}")
        down = layer.gradient_s * scale
        if down > 0.0:
            bars += svg.rectangle(x, zero, thick, min(down, below), "c-gradient hatch")
        if down > below + 0.5:
            bars += svg.rectangle(x, zero + below - 3, thick, 3, "over")
        bars += svg.rectangle(x, strip, thick, 9, svg.fill_of(split_index(run.key)))
        # the whole column reacts, not only the thin bar
        bars += svg.rectangle(x, 4, pitch, strip + 5, "pick")
        drawn.append(Markup("<g class='layer'><title>{}</title>{}</g>").format(tip, bars))
        if i % every == 0:
            name = svg.cut(layer.name, 96.0)
            drawn.append(svg.text(x + thick / 2 + 3, strip + 16, name, "small end", -90))
    label = f"Time of each of {len(rows)} layers by cause; the table of layers holds the figures"
    longest_name = min(max(len(layer.name) for layer, _ in rows) * svg.CHARACTER, 96.0)
    return svg.drawing(width, strip + 24 + longest_name, label, drawn)


def _vertical_axis(
    width: float, zero: float, longest: float, scale: float, below: float
) -> list[Markup]:
    drawn = []
    for tick in svg.nice_ticks(longest):
        y = zero - tick * scale
        drawn.append(svg.line(_MARGIN - 4, y, width, y, "grid" if tick else "axis"))
        drawn.append(svg.text(_MARGIN - 8, y + 4, figures.seconds(tick), "end"))
        if tick and tick * scale <= below:
            drawn.append(svg.line(_MARGIN - 4, zero + tick * scale, width, zero + tick * scale))
            drawn.append(
                svg.text(_MARGIN - 8, zero + tick * scale + 4, figures.seconds(tick), "end")
            )
    return drawn


def rivals_chart(plan: Plan) -> Markup:
    """Step times of the plan and of the usual strategies."""
    mine = plan.step_time_s
    rows = [("this plan", mine, "c-plan", "" if plan.fits else "does not fit")]
    for rival in rivals.usual_rivals(plan):
        fill = "c-rival" if rival.fits else "c-rival hatch"
        remark = rival.verdict
        if rival.time is not None:
            remark = f"{figures.speed_up(rival.speed_up)}, {remark}".rstrip(", ")
        rows.append((rival.short, rival.time or 0.0, fill, remark))
    longest = min(max(row[1] for row in rows), LONGEST_RIVAL * mine)
    left, room = 110.0, WIDTH - 110.0 - 260.0
    drawn = []
    for i, (name, seconds, fill, remark) in enumerate(rows):
        y = 4.0 + 28.0 * i
        drawn.append(svg.text(left - 10, y + 15, name, "end strong" if i == 0 else "end"))
        extent = room * min(seconds, longest) / longest
        tip = f"{name}: {figures.seconds(seconds) if seconds else remark}"
        if seconds > 0.0:
            drawn.append(svg.rectangle(left, y, extent, 21, fill, tip))
        if seconds > longest * 1.0001:
            drawn.append(svg.text(left + extent - 4, y + 15, "cut off »", "inside end"))
        label = f"{figures.seconds(seconds)}, {remark}".rstrip(", ") if seconds else remark
        drawn.append(svg.text(left + extent + 8, y + 15, label, "strong" if i == 0 else ""))
    label = "Step time of the plan and of the usual strategies; the table holds the figures"
    return svg.drawing(WIDTH, 8 + 28.0 * len(rows), label, drawn)


def sources_chart(plan: Plan) -> Markup:
    """Where the time of computation comes from."""
    rows = figures.source_rows(plan)
    parts = [
        svg.Part(
            value=row.share,
            fill=f"q-{row.key}",
            tip=f"{row.label}: {figures.percent(row.share)}",
            text=f"{row.label} {figures.percent(row.share)}",
        )
        for row in rows
    ]
    label = "Sources of compute times: " + "; ".join(part.tip for part in parts)
    return svg.drawing(WIDTH, 30, label, [svg.stacked(0, 2, WIDTH, 26, parts, 1.0)])
