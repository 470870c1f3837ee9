"""The page of tools/demo --html: loss curves as SVG and the table; one file, no script, no network."""

import html
import math

import table

WIDTH, HEIGHT = 860, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 20, 45
# A hue for each codec; error feedback dashes the line.
COLOURS = {"native": "#222222", "bf16": "#7a7a7a", "int8": "#1f77b4", "int4": "#2ca02c", "int2": "#d62728"}

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: 1.5em 0; }
th, td { padding: .25em .8em; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
svg { width: 100%; height: auto; }
"""


def render(setup, rows, results):
    parts = ["<!doctype html>", '<html lang="en"><meta charset="utf-8">', "<title>slimwire demo</title>",
             f"<style>{STYLE}</style>", "<h1>The same training, fewer bytes</h1>", f"<p>{html.escape(setup)}.</p>"]
    first_seed = [result for result in results if result.seed == results[0].seed]
    parts += ["<h2>Training loss</h2>", draw(first_seed), "<h2>Result</h2>", html_table(rows), "</html>"]
    return "\n".join(parts) + "\n"


def html_table(rows):
    lines = ["<table>", "<tr>" + "".join(f"<th>{html.escape(text)}</th>" for text in table.HEADINGS) + "</tr>"]
    for row in rows:
        lines.append("<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in table.cells(row)) + "</tr>")
    return "\n".join([*lines, "</table>"])


def draw(results):
    """Loss on a logarithmic axis over steps, one line a configuration."""
    curves = {result.configuration: [(point["step"], point["train_loss"])
                                     for point in result.accuracy.record["loss_curve"]
                                     if math.isfinite(point["train_loss"] or math.nan) and point["train_loss"] > 0]
              for result in results}
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return "<p>no finite loss</p>"
    last = max(step for step, _ in points)
    low = math.log10(min(loss for _, loss in points) * 0.95)
    high = math.log10(max(loss for _, loss in points) * 1.05)

    def x(step):
        return LEFT + (WIDTH - LEFT - RIGHT) * step / last

    def y(loss):
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - math.log10(loss)) / (high - low)

    lines = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="training loss by step">']
    for loss in (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1, 1.5, 2, 3):
        if low <= math.log10(loss) <= high:
            lines.append(f'<path d="M{LEFT} {y(loss):.1f}H{WIDTH - RIGHT}" stroke="#e5e5e5"/>')
            lines.append(f'<text x="{LEFT - 8}" y="{y(loss) + 4:.1f}" font-size="12" text-anchor="end">{loss:g}</text>')
    for part in range(6):
        step = round(last * part / 5)
        lines.append(f'<text x="{x(step):.1f}" y="{HEIGHT - BOTTOM + 18}" font-size="12" text-anchor="middle">{step}</text>')
    lines.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" font-size="12" text-anchor="middle">step</text>')
    for number, (configuration, curve) in enumerate(curves.items()):
        colour = COLOURS.get(configuration.name.removesuffix("+EF"), "#9467bd")
        stroke = f'stroke="{colour}" stroke-width="1.6"' + (' stroke-dasharray="5 3"' if configuration.feedback else "")
        path = "".join(f"{'L' if index else 'M'}{x(step):.1f} {y(loss):.1f}" for index, (step, loss) in enumerate(curve))
        name = html.escape(configuration.name)
        lines.append(f'<path d="{path}" fill="none" {stroke}><title>{name}</title></path>')
        top = TOP + 14 + 18 * number
        lines.append(f'<path d="M{WIDTH - 140} {top}h28" {stroke}/>'
                     f'<text x="{WIDTH - 104}" y="{top + 4}" font-size="13">{name}</text>')
    return "\n".join([*lines, "</svg>"])
