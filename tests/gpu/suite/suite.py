"""One run: the steps in turn, each within its own limit and the run's, each result written at once.

A step is a function of the suite. It starts jobs (job, process) and adds what it judges itself (check). Nothing that a
step does or a job does to itself stops the next one.
"""
import shutil
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import jobs
from machine import COMMAND, DROPIN, FEW_CHANNELS, LIBRARY, Skip


class StepOver(Exception):
    """The step's own limit is spent."""


class RunOver(Exception):
    """The run's is: the step is repeated by --continue."""


@dataclass(frozen=True)
class Step:
    name: str
    limit_s: int
    run: Callable
    shows: str
    needs: tuple = ()  # built files, below the build folder, or names of programs
    emulated: bool = True  # means something without a GPU
    short: bool = True  # belongs to the short run


def settings(codec, feedback="", min_bytes="2048", ops="all"):
    """The variables of one codec for everything."""
    return {"SLIMWIRE_CODEC": codec, "SLIMWIRE_OPS": ops, "SLIMWIRE_MIN_BYTES": min_bytes,
            **({"SLIMWIRE_EF": feedback} if feedback else {})}


IDLE = settings("int8", min_bytes="1GiB")  # sees every call and leaves it


class Suite:
    least_s = 5  # that a job gets

    def __init__(self, machine, results, seconds, short=False, nccl_tests=None, seed=1):
        self.machine, self.results = machine, results
        self.short, self.nccl_tests, self.seed = short, nccl_tests, seed
        self.end = time.monotonic() + seconds
        self.step, self.step_end, self.channels = None, self.end, FEW_CHANNELS
        self.log = ""  # of a step that fails outside its jobs

    # --- for steps

    def seconds_left(self, limit_s):
        now = time.monotonic()
        if self.end - now < self.least_s:
            raise RunOver
        if self.step_end - now < self.least_s:
            raise StepOver(f"not done after its limit of {self.step.limit_s} s")
        return min(limit_s, self.step_end - now, self.end - now)

    def folder(self, name):
        return self.results.folder / "jobs" / self.step.name / name

    def start(self, name, command, limit_s, environment, ranks):
        limit_s = self.seconds_left(limit_s)
        environment = {**self.machine.environment, **environment}
        ended = jobs.run([str(word) for word in command], self.folder(name), limit_s, environment, ranks,
                         self.machine.same_host, stacks=not self.machine.emulated)
        if ended.status == jobs.TIME_UP and self.end - time.monotonic() < self.least_s:
            raise RunOver
        return ended

    def process(self, name, command, limit_s, environment=None):
        """One process that the step judges itself."""
        return self.start(name, command, limit_s, environment or {}, 1)

    def job(self, name, command, *, ranks=2, limit_s=40, hook=None, environment=None, compressed=None, algorithm="",
            pattern="", figures=None):
        """A job whose ranks all end with 0, where rank 0 prints `pattern`. hook: None, "preload", "dropin", or "auto":
        each rank under `slimwire run`.
        compressed: whether slimwire must have compressed calls (of `algorithm`), None: either. figures: of the ended
        job. Returns it, or None where it failed or was skipped."""
        environment = {**self.channels, **(environment or {})}
        if hook:
            if hook == "auto":
                command = [self.machine.build / COMMAND, "run", "--", *command]
            else:
                environment["LD_PRELOAD"] = str(self.machine.build / LIBRARY if hook == "preload" else self.dropin())
            environment["SLIMWIRE_REPORT"] = str(self.folder(name) / "report.%r.%p")
        ended = self.start(name, command, limit_s, environment, ranks)
        if ended.status == 77:
            self.add(name, "skipped", ended.seconds, why=(ended.output().splitlines() or [""])[-1])
            return None
        why = self.why_wrong(ended, limit_s, hook and "SLIMWIRE_CODEC" in environment, compressed, algorithm, pattern)
        if why:
            self.add(name, "failed", ended.seconds, why=why, log=ended.last_lines())
            return None
        found = figures(ended) if figures else {}
        if compressed:
            found["compressed_calls"] = ended.compressed_calls(algorithm)
        self.add(name, "passed", ended.seconds, figures=found)
        return ended

    @staticmethod
    def why_wrong(ended, limit_s, sees_calls, compressed, algorithm, pattern):
        if ended.status == jobs.TIME_UP:
            return f"not done after {min(limit_s, ended.seconds):.0f} s"
        if ended.status != 0:
            return f"exit status {ended.status}"
        if pattern not in ended.output():
            return f"rank 0 did not print '{pattern}'"
        if any("cannot be preloaded" in path.read_text(errors="replace") for path in ended.folder.glob("rank.*")):
            return "slimwire was not preloaded"
        if sees_calls and not any(ended.records("key")):
            return "slimwire saw no call"
        calls = ended.compressed_calls(algorithm)
        if compressed and calls == 0:
            return f"nothing was compressed {f'by {algorithm}' if algorithm else ''}".rstrip()
        if compressed is False and calls > 0:
            return "something was compressed"
        return ""

    def check(self, name, right, what, **figures):
        self.add(name, "passed" if right else "failed", 0, figures=figures, **({} if right else {"why": f"not: {what}"}))
        return right

    def add(self, name, outcome, seconds, **members):
        self.results.add("gpu_job", step=self.step.name, job=name, outcome=outcome, seconds=round(seconds, 1),
                         **{key: value for key, value in members.items() if value})

    def dropin(self):
        """The drop-in's folder has the real library beside it under another name. A wheel of PyTorch finds its NCCL by
        RPATH, which no LD_LIBRARY_PATH goes before; a preloaded library of that name does."""
        return self.results.folder / "dropin/libnccl.so.2"

    def make_dropin(self, nccl):
        folder = self.dropin().parent
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.machine.build / DROPIN, self.dropin())
        (folder / "libnccl-real.so").unlink(missing_ok=True)
        (folder / "libnccl-real.so").symlink_to(nccl)

    # --- for run

    def missing(self, step):
        """Files that the step needs and the build folder lacks."""
        return [str(path) for path in self.needed(step) if not path.exists()]

    def needed(self, step):
        if self.machine.emulated and not step.emulated:
            return []
        return [self.machine.build / name if "/" in name else self.machine.program(name) for name in step.needs]

    def run_step(self, step):
        """Its outcome and why."""
        if self.machine.emulated and not step.emulated:
            return "skipped", "needs a GPU"
        missing = self.missing(step)
        if missing:
            return "failed", f"not built: {', '.join(missing)}"
        self.channels = FEW_CHANNELS
        try:
            step.run(self)
        except Skip as reason:
            return "skipped", str(reason)
        except RunOver:
            return "unfinished", "the run's time was over"
        except StepOver as reason:
            return "failed", str(reason)
        except Exception as error:  # a defect of the step; the next one has none of it
            self.log = traceback.format_exc(limit=-3)
            return "failed", f"{type(error).__name__}: {error}"
        outcomes = {one["outcome"] for one in self.results.jobs(step.name)}
        for outcome in ("failed", "passed", "skipped"):
            if outcome in outcomes:
                return outcome, ""
        return "failed", "the step ran nothing"

    def run(self, steps):
        """Runs what is not done yet."""
        todo = [step for step in steps if step.name not in self.results.done()]
        for at, step in enumerate(todo):
            if self.end - time.monotonic() < self.least_s:
                self.results.write_page([later.name for later in todo[at:]])
                break
            print(f"\n== {step.name}: {step.shows}", flush=True)
            begin = time.monotonic()
            self.step, self.step_end, self.log = step, begin + step.limit_s, ""
            outcome, why = self.run_step(step)
            self.results.add("gpu_step", step=step.name, outcome=outcome, seconds=round(time.monotonic() - begin, 1),
                             **({"why": why} if why else {}), **({"log": self.log} if self.log else {}))
            if why:
                print(f"{outcome}: {why}", flush=True)
            self.results.write_page([later.name for later in todo[at + 1:]])
