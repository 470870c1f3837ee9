"""tools/demo: runs the trainer natively and with each codec, and prints one table.

A speed run makes a few steps on a slow link; an accuracy run trains all epochs on an unshaped one. What
the first seed's speed runs show is printed before the longer accuracy runs begin. Every
codec sees the same initial parameters and the same batches for a seed, so accuracies are compared
pairwise. Parts: runs.py starts a job and reads its records, table.py does the statistics, page.py draws.
"""

import argparse
import dataclasses
import json
import pathlib
import shutil
import sys
import tempfile
import time

import page
import runs
import table

# int2 with large blocks: 2.03 bits a value, and coarse enough that training without error feedback
# visibly suffers, which makes it the control that error feedback works.
CODECS = {"bf16": "bf16", "int8": "int8", "int4": "int4", "int2": "int2:block=512"}
SHOWN = ("native", "bf16", "int8", "int4+EF", "int2", "int2+EF")  # without --all
CONFIGURATIONS = [
    runs.Configuration("native", "native", False),
    *(
        runs.Configuration(name + ("+EF" if feedback else ""), codec, feedback)
        for name, codec in CODECS.items()
        for feedback in (False, True)
    ),
]


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a number from 1 on")
    return value


def parse_arguments(arguments):
    names = [configuration.name for configuration in CONFIGURATIONS]
    parser = argparse.ArgumentParser(
        prog="tools/demo",
        description="Trains Fashion-MNIST data parallel with an ordinary NCCL program, natively and "
        "compressed, on this machine's emulated ranks (or on its GPUs), and compares accuracy and speed.",
    )
    parser.add_argument("--json", metavar="F", help="write all runs as JSON")
    parser.add_argument("--html", metavar="F", help="write a page with the table and the loss curves")
    parser.add_argument("--seeds", metavar="N", type=positive, default=1,
                        help="repeat with N seeds and compare pairwise; 5 is the full experiment (default 1)")
    parser.add_argument("--epochs", metavar="N", type=positive, default=3, help="of an accuracy run (default 3)")
    parser.add_argument("--link", metavar="SPEC", default="1gbit",
                        help="link of each emulated rank in the speed runs, as 1gbit or 5gbit,50us (default 1gbit)")
    parser.add_argument("--steps", metavar="N", type=positive, default=50, help="of a speed run (default 50)")
    parser.add_argument("--ranks", metavar="N", type=positive, help="default 4, or the number of GPUs with --gpu")
    parser.add_argument("--all", action="store_true",
                        help="every codec with and without error feedback (default " + ", ".join(SHOWN) + ")")
    parser.add_argument("--only", metavar="NAMES",
                        help="comma-separated choice of " + ",".join(names) + "; native is always run")
    parser.add_argument("--gpu", action="store_true",
                        help="run on this machine's GPUs and its real NCCL; the link is then the machine's own")
    parser.add_argument("--build", metavar="DIR", default="build", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    chosen = options.only.split(",") if options.only else names if options.all else SHOWN
    for name in chosen:
        if name not in names:
            parser.error(f"--only: '{name}' is none of {', '.join(names)}")
    options.configurations = [c for c in CONFIGURATIONS if c.name == "native" or c.name in chosen]
    for path in (options.json, options.html):
        # Before minutes of work, not after them.
        if path:
            try:
                open(path, "a", encoding="utf-8").close()
            except OSError as error:
                parser.error(f"{path}: {error.strerror}")
    return options


def main(arguments):
    options = parse_arguments(arguments)
    start = time.monotonic()
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="slimwire-demo-"))
    try:
        job = runs.Job(options, scratch)
        results = run_all(options, job)
    except runs.RunFailed as failure:
        print(f"\ndemo: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(scratch, ignore_errors=True)

    setup = (f"{job.ranks} ranks on {job.place}, accuracy after {options.epochs} epochs, speed over "
             f"{options.steps} steps on {job.link_text}, {options.seeds} seed{'s' if options.seeds > 1 else ''}")
    rows = table.summarise(results)
    print()
    print(setup)
    print(table.render(rows))
    if options.seeds > 1:
        print()
        print(table.render_paired(rows))
    if options.json:
        record = {"v": 1, "runs": [result.record() for result in results]}
        pathlib.Path(options.json).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"\nruns: {options.json}")
    if options.html:
        pathlib.Path(options.html).write_text(page.render(setup, rows, results), encoding="utf-8")
        print(f"page: {options.html}")
    print(f"\n{time.monotonic() - start:.0f} s in all")
    return 0


def run_all(options, job):
    """One result per seed and configuration, natively first, since the others are relative to it."""
    results = []
    total = 2 * len(options.configurations) * options.seeds
    progress = runs.Progress(total)
    for seed in range(1, options.seeds + 1):
        native, fast = None, []
        for configuration in options.configurations:
            speed = job.train(configuration, seed, progress, speed=True)
            native = native or speed
            fast.append(runs.Result(configuration, seed, None, speed, native))
        if seed == 1:
            print(f"\n{table.render(table.summarise(fast))}\n", flush=True)
        for result in fast:
            accuracy = job.train(result.configuration, seed, progress, speed=False)
            results.append(dataclasses.replace(result, accuracy=accuracy))
    progress.done()
    return results


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
