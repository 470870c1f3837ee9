"""Kernels on a device: against the host's bodies to the bit, and against a device copy of the same bytes."""
import json
import shutil

HOT = ("int8", "int4", "int2", "fp8e4m3", "bf16")


def lines_of(ended):
    for line in ended.output().splitlines():
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except ValueError:  # the program was killed there
                pass


def compare(suite, name, limit_s, *arguments):
    """What was not compared in time is a figure; a difference is a failure."""
    program = suite.machine.program("codecs")
    ended = suite.process(name, [program, "--mode", "compare", "--seconds", limit_s - 15, *arguments], limit_s)
    lines = list(lines_of(ended))
    failures = [line for line in ended.output().splitlines() if line.startswith("FAILED")]
    if failures or ended.status not in (0, 1) or not lines or not all(line["compared"] for line in lines):
        why = failures[0] if failures else f"exit status {ended.status}, {len(lines)} specifications compared"
        suite.add(name, "failed", ended.seconds, why=why[:300], log="\n".join(failures[:20]) or ended.last_lines())
        return
    values = sum(line["compared"] for line in lines)
    suite.add(name, "passed", ended.seconds, figures={
        "specifications": len(lines), "values": values, "of the values wanted":
        round(values / sum(line["wanted"] for line in lines), 3)})


def kernels(suite):
    compare(suite, "compare", 90, "--values", 1 << 26)


def kernels_long(suite):
    compare(suite, "compare", 260, "--values", 1 << 30)


def bench(suite, name, limit_s, *arguments):
    program = suite.machine.program("codecs")
    ended = suite.process(name, [program, "--mode", "bench", "--seconds", limit_s - 15, *arguments], limit_s)
    lines = list(lines_of(ended))
    if ended.status != 0 or not lines:
        suite.add(name, "failed", ended.seconds, why=f"exit status {ended.status}", log=ended.last_lines())
        return
    figures = {f"{line['codec']} {line['op']} {line['dtype']}":
               f"{line['moved_gbps']} GB/s, {line['fraction']} of a copy"
               for line in lines if "fraction" in line and not line.get("max_blocks")}
    suite.add(name, "passed", ended.seconds, figures=figures)


def speed(suite):
    bench(suite, "hot", 60, *[word for codec in HOT for word in ("--codec", codec)])


def speed_all(suite):
    bench(suite, "all", 150)


def sanitize(tool):
    def run(suite):
        sanitizer = shutil.which("compute-sanitizer")
        if sanitizer is None:
            suite.add(tool, "skipped", 0, why="no compute-sanitizer")
            return
        # Each specification that adds kernels has its turn at least once; what is not reached in time fails.
        suite.job(tool, [sanitizer, "--tool", tool, "--error-exitcode", 1, suite.machine.program("codecs"), "--mode",
                         "compare", "--variants", "few", "--threads", 1, "--values", 20000, "--most", 20000,
                         "--seconds", 50], ranks=1, limit_s=65)
    return run
