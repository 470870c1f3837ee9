"""One training job of tools/demo: start it, follow it, read its records.

The trainer writes what it measured (time, accuracy), slimwire's report files what went over the wire;
both are read here and checked against each other.
"""

import dataclasses
import json
import math
import os
import pathlib
import re
import socket
import subprocess
import sys
import time

LINES_SHOWN = 15


class RunFailed(Exception):
    """One line, and perhaps the end of the failing rank's output."""


@dataclasses.dataclass(frozen=True)
class Configuration:
    name: str  # as in the table: "int4+EF"
    codec: str  # "native" or a codec specification
    feedback: bool


@dataclasses.dataclass(frozen=True)
class Training:
    """What one job measured. Bytes are those one rank sends in a step, averaged over the ranks."""

    record: dict  # of demo_train
    wire_bytes: float
    dense_bytes: float  # of native fp32 in its place


@dataclasses.dataclass(frozen=True)
class Result:
    configuration: Configuration
    seed: int
    accuracy: Training | None  # not yet
    speed: Training
    native_speed: Training

    def record(self):
        """A member of "runs"; collectives/SCHEMA.md."""
        step_ms, comm_ms = self.speed.record["step_ms"], self.speed.record["comm_ms"]
        native = self.native_speed.record
        comm_speedup = ratio(native["comm_ms"], comm_ms)
        byte_ratio = ratio(self.speed.dense_bytes, self.speed.wire_bytes)
        return {
            "name": self.configuration.name,
            "codec": self.configuration.codec,
            "seed": self.seed,
            "accuracy": self.accuracy.record["accuracy"] if self.accuracy else math.nan,
            "step_ms": step_ms,
            "comm_ms": comm_ms,
            "wire_bytes": round(self.speed.wire_bytes),
            "dense_bytes": round(self.speed.dense_bytes),
            "speedup": ratio(native["step_ms"], step_ms),
            "comm_speedup": comm_speedup,
            "efficiency": ratio(comm_speedup, byte_ratio),
        }


def ratio(above, below):
    return above / below if below else 0.0


class Progress:
    """A line a run, rewritten while it goes on where the output is a terminal."""

    def __init__(self, total):
        self.total, self.number = total, 0
        self.live = sys.stdout.isatty()
        self.start = time.monotonic()
        self.title = ""

    def begin(self, title):
        self.number += 1
        self.title = f"[{self.number:2}/{self.total}] {title:<28}"
        self.update("starting")

    def update(self, text):
        if self.live:
            print(f"\r\033[K{self.title} {text}", end="", flush=True)

    def end(self, text):
        spent = time.monotonic() - self.start
        left = spent / self.number * (self.total - self.number)
        tail = f"  (about {left / 60:.0f} min left)" if left > 90 else ""
        print(("\r\033[K" if self.live else "") + f"{self.title} {text}{tail}", flush=True)

    def done(self):
        if self.live:
            print("\r\033[K", end="")


class Job:
    """Knows this machine: programs, ranks, environment."""

    def __init__(self, options, scratch):
        build = pathlib.Path(options.build).resolve()
        self.slimwire = build / "tools" / "slimwire"
        self.trainer = build / "tools" / "demo_train"
        for program in (self.slimwire, self.trainer):
            if not program.exists():
                raise RunFailed(f"{program} was not built; see the warnings of tools/build")
        self.options = options
        self.scratch = scratch
        self.gpu = options.gpu
        self.ranks = options.ranks or (count_gpus() if options.gpu else 4)
        self.place = "this machine's GPUs" if options.gpu else "the emulator"
        self.link_text = "the machine's own link" if options.gpu else f"a link of {options.link} a rank"
        # The user's own SLIMWIRE_ variables would change what is compared.
        self.environment = {
            name: value for name, value in os.environ.items()
            if not name.startswith("SLIMWIRE_") or name in ("SLIMWIRE_LOG", "SLIMWIRE_NCCL_LIBRARY")
        }
        if options.gpu:
            self.environment["LD_LIBRARY_PATH"] = ":".join(
                [*filter(None, [os.environ.get("LD_LIBRARY_PATH")]), "/usr/local/cuda/lib64"])

        if not self.gpu:
            self.check_link()

    def check_link(self):
        """A link that cannot be is said before the first minute of work."""
        probe = subprocess.run([str(self.slimwire), "run", "--native", "--emulate", "1", "--link", self.options.link,
                                "--", "true"], env=self.environment, text=True, capture_output=True, check=False)
        if probe.returncode != 0:
            raise RunFailed(f"--link: {probe.stderr.strip() or probe.stdout.strip()}")

    def train(self, configuration, seed, progress, speed):
        options = self.options
        progress.begin(f"{configuration.name}, {'speed' if speed else 'accuracy'}"
                       + (f", seed {seed}" if options.seeds > 1 else ""))
        folder = self.scratch / f"run{progress.number}"
        folder.mkdir()
        record_path = folder / "record.json"
        trainer = [str(self.trainer), "--json", str(record_path), "--seed", str(seed),
                   "--epochs", str(options.epochs)]
        if speed:
            trainer += ["--steps", str(options.steps), "--no-test"]
        launcher = [str(self.slimwire), "run"]
        if configuration.codec == "native":
            launcher += ["--native"]
        else:
            launcher += ["--codec", configuration.codec, "--report", str(folder / "report-%r.jsonl")]
            if configuration.feedback:
                launcher += ["--ef", "ef14"]
        start = time.monotonic()
        if self.gpu:
            self.run_on_gpus(launcher + ["--"] + trainer, progress)
        else:
            launcher += ["--emulate", str(self.ranks)]
            if speed:
                launcher += ["--link", options.link]
            self.follow([self.spawn(launcher + ["--"] + trainer, {})], progress)

        record = json.loads(record_path.read_text(encoding="utf-8"))
        training = read_wire(configuration, record, folder, self.ranks)
        if speed:
            result = f"step {record['step_ms']:7.1f} ms, communication {record['comm_ms']:7.1f} ms"
        else:
            result = f"test accuracy {record['accuracy']:6.2f} %"
        progress.end(f"{result}   {time.monotonic() - start:5.1f} s")
        return training

    def spawn(self, command, extra):
        return subprocess.Popen(command, env={**self.environment, **extra}, text=True, errors="replace",
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run_on_gpus(self, command, progress):
        """Without the emulator slimwire starts no ranks; this is the launcher then."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        ranks = []
        for rank in range(self.ranks):
            extra = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.ranks),
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            ranks.append(self.spawn(command, extra))
        self.follow(ranks, progress)

    def follow(self, processes, progress):
        """Until all ended; the first one's output feeds the progress line."""
        lines = []
        try:
            for line in processes[0].stdout:
                lines.append(line.rstrip("\n"))
                match = re.search(r"demo_train: (epoch.*)", line)
                if match:
                    progress.update(match.group(1))
            for number, process in enumerate(processes):
                output = lines if number == 0 else process.stdout.read().splitlines()
                if process.wait() != 0:
                    raise RunFailed(describe_failure(progress.title.strip(), process.returncode, output,
                                                     number if len(processes) > 1 else None))
        finally:
            for process in processes:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
                process.stdout.close()


def describe_failure(title, code, lines, rank=None):
    """`lines` carry "[rank] " in front when the launcher wrote them; then the rank that it names, or the
    first that reported an error, is shown."""
    if rank is None:
        named = [re.search(r"\brank (\d+)\b.*(exit|killed|signal|failed|ended)", line) for line in lines]
        errors = [re.match(r"\[(\d+)\].*\berror\b", line) for line in lines]
        for match in [*filter(None, named), *filter(None, errors)]:
            rank = int(match.group(1))
            break
    own = [line for line in lines if rank is not None and line.startswith(f"[{rank}]")]
    rest = [line for line in lines if not re.match(r"\[\d+\]", line)]
    shown = (own[-LINES_SHOWN:] + rest[-LINES_SHOWN:]) if own else lines[-LINES_SHOWN:]
    return "\n  ".join([f"{title}: ended with exit code {code}"
                        + (f" (rank {rank})" if rank is not None else ""), *shown])


def ring_bytes(record, ranks):
    """What one rank of a native all-reduce of the gradients sends in a step."""
    return 2 * (ranks - 1) / ranks * record["dense_bytes_per_step"]


def read_wire(configuration, record, folder, ranks):
    dense = ring_bytes(record, ranks)
    if configuration.codec == "native":
        return Training(record, dense, dense)
    wire = counted_dense = 0
    for rank in range(ranks):
        path = folder / f"report-{rank}.jsonl"
        if not path.exists():
            raise RunFailed(f"{configuration.name}: slimwire wrote no report for rank {rank}: it was not in "
                            "the job; ask `slimwire doctor`")
        for line in path.read_text(encoding="utf-8").splitlines():
            key = json.loads(line)
            # The gradients' calls; the trainer's others (statistics, first parameters) are not averages.
            if key.get("record") != "key" or key["op"] != "allreduce" or key["redop"] != "avg":
                continue
            if key["calls"] == 0:  # prepared and never needed: the native twin, for stream capture
                continue
            if key["codec"] == "native":
                raise RunFailed(f"{configuration.name}: an all-reduce of {key['count']} elements went native: "
                                f"{key['reason']}")
            wire += key["wire_bytes"]
            counted_dense += key["native_wire_bytes"]
    per_step = ranks * record["steps"]
    if abs(counted_dense / per_step - dense) > 0.001 * dense:
        raise RunFailed(f"{configuration.name}: the reports count {counted_dense / per_step:.0f} native bytes "
                        f"a step, the buckets make {dense:.0f}")
    return Training(record, wire / per_step, dense)


def count_gpus():
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise RunFailed("--gpu: nvidia-smi finds no GPU on this machine") from error
    return max(1, sum(line.startswith("GPU ") for line in listed.splitlines()))
