"""Statistics of tools/demo: one row a configuration, and accuracies compared pairwise with native."""

import dataclasses
import math
import statistics

# Student's t, two-sided 95 %, by degrees of freedom 1 .. 30.
T95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
       2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
       2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042]


@dataclasses.dataclass(frozen=True)
class Paired:
    """Accuracy minus native's of the same seed, percentage points."""

    mean: float
    deviation: float
    half_interval: float  # of the 95 % interval of the mean


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    accuracy: float  # mean over seeds, percent; not a number before the accuracy runs
    deviation: float
    paired: Paired
    step_ms: float  # medians over seeds from here on
    comm_ms: float
    speedup: float
    against_bf16: float  # step time of cast bf16 over this one's; 0 when bf16 was not run
    wire_bytes: float
    byte_ratio: float
    efficiency: float


def compare_pairs(values, native):
    differences = [value - base for value, base in zip(values, native, strict=True)]
    mean = statistics.fmean(differences)
    if len(differences) < 2:
        return Paired(mean, 0.0, 0.0)
    deviation = statistics.stdev(differences)
    freedom = len(differences) - 1
    quantile = T95[freedom - 1] if freedom <= len(T95) else 1.960 + 2.4 / freedom
    return Paired(mean, deviation, quantile * deviation / math.sqrt(len(differences)))


def summarise(results):
    by_name = {}
    for result in results:
        by_name.setdefault(result.configuration.name, []).append(result.record())
    medians = {
        name: {member: statistics.median(record[member] for record in records)
               for member in ("step_ms", "comm_ms", "speedup", "efficiency", "wire_bytes", "dense_bytes")}
        for name, records in by_name.items()
    }
    native = [record["accuracy"] for record in by_name["native"]]
    rows = []
    for name, records in by_name.items():
        accuracies = [record["accuracy"] for record in records]
        median = medians[name]
        rows.append(Row(
            name=name,
            accuracy=statistics.fmean(accuracies),
            deviation=statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0,
            paired=compare_pairs(accuracies, native),
            step_ms=median["step_ms"],
            comm_ms=median["comm_ms"],
            speedup=median["speedup"],
            against_bf16=medians["bf16"]["step_ms"] / median["step_ms"] if "bf16" in medians else 0.0,
            wire_bytes=median["wire_bytes"],
            byte_ratio=median["dense_bytes"] / median["wire_bytes"],
            efficiency=median["efficiency"],
        ))
    return rows


HEADINGS = ["", "test accuracy", "against native", "step", "speed-up", "vs bf16", "communication",
            "wire bytes/step", "fewer bytes", "efficiency"]


def cells(row):
    return [
        row.name,
        f"{row.accuracy:.2f} %",
        f"{row.paired.mean:+.2f}" if row.name != "native" else "",
        f"{row.step_ms:.1f} ms",
        f"{row.speedup:.2f}x",
        f"{row.against_bf16:.2f}x" if row.against_bf16 else "",
        f"{row.comm_ms:.1f} ms",
        f"{row.wire_bytes / 1e6:.3f} MB",
        f"{row.byte_ratio:.2f}x",
        f"{row.efficiency:.2f}",
    ]


def align(lines):
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) if column == 0 else text.rjust(width)
                  for column, (text, width) in enumerate(zip(line, widths))).rstrip()
        for line in lines)


def render(rows):
    lines, notes = [HEADINGS, *map(cells, rows)], "against native: percentage points, same seed. "
    if math.isnan(rows[0].accuracy):
        lines, notes = [line[:1] + line[3:] for line in lines], ""
    return align(lines) + (f"\n{notes}wire bytes: sent by one rank. efficiency: speed-up of the\ncommunication (codec included) "
                           "over the ratio of bytes; 1 is the most that fewer bytes can give.")


def render_paired(rows):
    lines = [["accuracy", "mean", "deviation", "difference", "deviation", "95 % interval"]]
    for row in rows:
        paired = row.paired
        lines.append([row.name, f"{row.accuracy:.2f} %", f"{row.deviation:.2f}"] + (
            ["", "", ""] if row.name == "native" else
            [f"{paired.mean:+.2f}", f"{paired.deviation:.2f}",
             f"{paired.mean - paired.half_interval:+.2f} to {paired.mean + paired.half_interval:+.2f}"]))
    return align(lines) + "\ndifference: percentage points against native, paired by seed; interval of its mean (Student t)."
