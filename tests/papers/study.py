"""Runs of a reproduction, kept by what they were, and what follows from them (PROTOCOL.md).

A study is a file of JSON lines: record "paper_run" (method, policy, job, result: what trainer.py printed, bytes and calls from
slimwire's reports) and what `summarise` makes of them, record "paper_table".
"""
import argparse
import atexit
import glob
import hashlib
import json
import math
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
FORKED = os.path.join(ROOT, "tests/e2e/torch/forked.py")
# Student's 97.5 % quantile by degrees of freedom, from 1.
STUDENT = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
           2.110, 2.101, 2.093, 2.086]

# Of a training that is timed: 50 steps, whatever it learns.
TIMED = {"trainer.py": {"most_steps": 50}, "tables.py": {"images": 25600, "tested": 4096}, "pipeline.py": {"steps": 50, "tested": 1},
         "resumed.py": {"first": 0, "last": 50, "save": 0, "state": "", "tested": 8, "tests": []}}

# Policies of old runs in today's words: a tensor is always a slot of the step, and a preview is called otherwise.
RENAMED = {'tensor = "step"\n': "", "preview = {": "step_ahead = {"}

NATIVE = 'version = 1\n[[rule]]\nname = "all"\ncodec = "native"\n'


def rule(codec, feedback="none", more=""):
    """A policy for the gradients of 64 KiB and more, norms and biases exact."""
    return ('version = 1\n[[rule]]\nname = "norms"\nmatch = { param = "1d" }\ncodec = "native"\n'
            f'[[rule]]\nname = "gradients"\nmatch = {{ op = "allreduce" }}\ncodec = "{codec}"\n'
            f'error_feedback = "{feedback}"\nmin_bytes = "64KiB"\n{more}')


def torch_missing():
    """Why there is no PyTorch to train with; empty where there is."""
    version = "import importlib.metadata as data; print(data.version('torch'))"
    done = subprocess.run([PYTHON, "-c", version], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"PyTorch is not installed for {PYTHON} (Debian: python3-torch)"
    version = done.stdout.strip()
    return "" if version.startswith("1.13.") else f"the backend of these trainings is for PyTorch 1.13, not {version}"


def accordions(keys):
    """What controllers decided, of the keys of all ranks' reports: windows in all, those by the stronger codec, and whether ranks
    decided alike."""
    tensors = [(key["comm"], key["op"], key["count"], tensor["slot"], tensor["ordinal"], tensor)
               for key in keys for tensor in key.get("accordion", [])]
    decisions = {}
    for *name, tensor in tensors:
        decisions.setdefault(tuple(name), set()).add((tensor["windows"], tensor["decisions_hash"]))
    return {"all": sum(tensor["windows"] for *_, tensor in tensors), "high": sum(tensor["high_windows"] for *_, tensor in tensors),
            "alike": all(len(of) == 1 for of in decisions.values())}


class Checks:
    """What must hold of a short run: said, and counted where it does not."""

    def __init__(self):
        self.wrong = 0

    def __call__(self, holds, what):
        print("ok  " if holds else "not ", what)
        self.wrong += not holds


def run_study(doc, full, short, **options):
    """A study's command. `options`: of each its default, or all values that it may have, the default first. Calls full(options), or of
    --short short(options, check)."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    for name, default in options.items():
        choices = {"choices": default} if isinstance(default, tuple) else {"type": type(default)}
        parser.add_argument("--" + name, default=default[0] if choices.get("choices") else default, **choices)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    chosen = parser.parse_args()
    if why := torch_missing():
        print(why, file=sys.stderr)
        sys.exit(77)
    if not chosen.short:
        sys.exit(full(chosen))
    check = Checks()
    short(chosen, check)
    sys.exit(1 if check.wrong else 0)


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores"


def commit():
    """The commit that a run is of, "-dirty" where more than results is changed."""
    def git(*words):
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!*.jsonl", ":!*.svg")
    return git("rev-parse", "--short=7", "HEAD") + ("-dirty" if changed else "")


def score(run):
    """What the task is judged by, more is better: in percent, or less the loss. (word, value)."""
    result = run["result"]
    if "loss" in result:
        return "negative loss", -result["loss"]
    return ("accuracy", result["accuracy_percent"]) if "accuracy_percent" in result else ("area", result["area_percent"])


def interval(differences):
    """(mean, lower end, upper end) of Student's 95 % interval."""
    mean = statistics.fmean(differences)
    if len(differences) < 2:
        return mean, float("-inf"), float("inf")
    freedom = min(len(differences) - 1, len(STUDENT))
    half = STUDENT[freedom - 1] * statistics.stdev(differences) / len(differences) ** 0.5
    return mean, mean - half, mean + half


def key_of(run):
    """The same of a run whose policy is spelled in the words of its commit as of one in today's."""
    policy = run["policy"]
    for old, new in RENAMED.items():
        policy = policy.replace(old, new)
    return hashlib.sha256(json.dumps([policy, run["job"], run["ranks"]], sort_keys=True).encode()).hexdigest()[:16]


class Study:
    """`trainer`: what a run executes, a file beside this one that prints a line of JSON with the losses. `operations`: whose calls count.
    A job may say `link`: that of each rank (slimwire run --link)."""
    served = {}

    def __init__(self, build, ranks, results=None, trainer="trainer.py", operations=("allreduce", "reducescatter")):
        self.build, self.ranks, self.results, self.trainer, self.operations = build, ranks, results, trainer, operations
        self.runs, self.used = {}, {}
        if results and os.path.exists(results):
            with open(results, encoding="utf-8") as file:
                for line in map(json.loads, file):
                    if line["record"] == "paper_run":
                        self.runs[key_of(line)] = line

    def run(self, method, policy, job):
        """The line of the run, which is made unless it is there."""
        key = key_of({"policy": policy, "job": job, "ranks": self.ranks})
        if key not in self.runs:
            line = {"v": 1, "record": "paper_run", "key": key, "method": method, "policy": policy, "job": job,
                    "ranks": self.ranks, "machine": machine(), "commit": commit(), **self.train(method, policy, job)}
            self.runs[key] = line
            if self.results:
                with open(self.results, "a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
        self.used[key] = True
        return {**self.runs[key], "method": method, "policy": policy}

    def row(self, method, policy, job, seeds):
        """The runs of seeds from 1 on, by one policy or each by its own."""
        runs = []
        for seed, text in enumerate([policy] * seeds if isinstance(policy, str) else policy, 1):
            runs.append(self.run(method, text, {**job, "seed": seed}))
            print(job.get("model", ""), method, seed, job["rate"], round(score(runs[-1])[1], 3), runs[-1].get("windows", ""), flush=True)
        return runs

    def forks(self):
        """The socket of a process under slimwire whose forks are the ranks: one import for all of them (forked.py)."""
        if not self.served:
            folder = tempfile.TemporaryDirectory()
            path = os.path.join(folder.name, "forks")
            server = subprocess.Popen([*self.launch(1), "--", PYTHON, "-B", FORKED, "--serve"],
                                      env=dict(os.environ, OMP_NUM_THREADS="1", TEST_FORKS=path))
            keeper = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            while keeper.connect_ex(path) != 0:
                if server.poll() is not None:
                    sys.exit(f"the process that forks ended with {server.returncode}")
                time.sleep(0.01)
            atexit.register(lambda: (keeper.close(), server.wait(), folder.cleanup()))
            self.served["path"] = path
        return self.served["path"]

    def launch(self, ranks):
        return [os.path.join(self.build, "tools/slimwire"), "run", "--emulate", str(ranks)]

    def variables(self, job):
        """What else the trainer's environment says."""
        return {}

    def train(self, method, policy, job):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "policy.toml")
            with open(path, "w", encoding="utf-8") as file:
                file.write(policy)
            command = [*self.launch(self.ranks), "--policy", path,
                       *(["--link", job["link"]] if "link" in job else []),
                       "--report", os.path.join(folder, "report.%r"), "--", PYTHON, "-B", FORKED,
                       os.path.join(ROOT, "tests/papers", self.trainer), json.dumps(job)]
            environment = dict(os.environ, OMP_NUM_THREADS="1", TEST_FOLDER=folder, TEST_FORKS=self.forks(),
                               TEST_TORCH_SHIM=os.path.join(self.build, "tests/e2e/torch/libtorch_shim.so"), **self.variables(job))
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=7200)
            lines = [line[line.index("{"):] for line in done.stdout.splitlines() if '"losses"' in line]
            if done.returncode != 0 or len(lines) != 1:
                sys.exit(f"{method}: exit code {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
            keys, missed = [], 0
            for report in glob.glob(os.path.join(folder, "report.*")):
                with open(report, encoding="utf-8") as file:
                    records = [json.loads(line) for line in file]
                keys += [record for record in records if record["record"] == "key" and record["op"] in self.operations and
                         not (record["op"] == "send" and record["root_or_peer"] == record["rank"])]  # such a message does not travel
                missed += sum(record.get("missed_masks", 0) for record in records)
        return {"result": json.loads(lines[0]),
                "wire_bytes": sum(key["wire_bytes"] for key in keys),
                "native_wire_bytes": sum(key["native_wire_bytes"] for key in keys),
                "aims": {member: sum(key["aims"][member] for key in keys if "aims" in key)
                         for member in ("encodings", "exact", "moved", "survivors", "wanted")},
                "missed_masks": missed,
                "windows": accordions(keys),
                "previews": {"gathers": sum(key.get("previews", 0) for key in keys),
                             "step_sizes": [round(key["step_size"], 5) for key in keys if key.get("previews", 0) > 0]},
                "elements": sum(key["calls"] * key["count"] for key in keys if "aims" in key),
                "compressed_calls": sum(key["calls"] for key in keys if key["algorithm"] != "native"),
                "calls": sum(key["calls"] for key in keys)}

    def tune(self, method, policy, job, rates):
        """The best rate of the job on the validation split. `rates`: ascending, each about twice the
        one before; while the best is the first or the last, one more beyond it is tried, up to 2 ** -10 and 2."""
        found = {}
        while True:
            for rate in rates:
                if rate not in found:
                    run = self.run(method, policy, {**job, "seed": 1000, "rate": rate, "validate": True})
                    found[rate] = score(run)[1]
            best = max(rates, key=found.get)
            if best == rates[0] and best / 2 >= 2 ** -10:
                rates = [float(f"{best / 2:.2g}"), *rates]
            elif best == rates[-1] and best * 2 <= 2:
                rates = [*rates, float(f"{best * 2:.2g}")]
            else:
                return best

    def timed(self, run, link="1gbit"):
        """Of a table's line: the median time of a step of such a run, each rank on this link."""
        timed = self.run(run["method"], run["policy"], {**run["job"], **TIMED[self.trainer], "link": link})
        return {"link": link, "step_seconds": round(timed["result"]["step_seconds"], 5)}

    def time(self, rows, lines):
        """Puts these times into the lines. rows: {method: [run for each seed]}."""
        for line in lines:
            line.update(self.timed(rows[line["method"]][0]))

    def write(self, models, lines, partial=False):
        """Leaves in the file what this study has used, runs of other models, and the tables. `partial`: also other runs of these models."""
        def stays(line):
            is_run = line["record"] == "paper_run"
            model = (line["job"] if is_run else line).get("model", "pipeline")
            return model not in models or (partial and is_run and key_of(line) not in self.used)

        with open(self.results, encoding="utf-8") as file:
            others = [line for line in map(json.loads, file) if stays(line)]
        kept = others + [self.runs[key] for key in self.used if self.runs[key] not in others] + lines
        with open(self.results + ".new", "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in kept)
        os.replace(self.results + ".new", self.results)


def summarise(rows, control):
    """rows: {method: [run for each seed]}, "native" among them. Lines of record "paper_table"."""
    native = [score(run)[1] for run in rows["native"]]
    # What NCCL would send in the whole training, as long as any method's: a method that stops earlier has sent little.
    whole = [max(runs[seed]["native_wire_bytes"] for runs in rows.values()) for seed in range(len(native))]
    lines = []
    for method, runs in rows.items():
        points = [score(run)[1] - base for run, base in zip(runs, native)]
        mean, low, high = interval(points)
        sent = sum(run["wire_bytes"] for run in runs)
        lines.append({"record": "paper_table", "method": method, "model": runs[0]["job"]["model"], "seeds": len(runs),
                      "rate": runs[0]["job"]["rate"],
                      "score": score(runs[0])[0], "score_percent": round(statistics.fmean(score(run)[1] for run in runs), 3),
                      "points": round(mean, 3), "low": round(low, 3), "high": round(high, 3),
                      "steps": runs[0]["result"]["steps"], "wire_ratio": round(sum(whole) / sent, 2) if sent else 1})
    for line, runs in zip(lines, rows.values()):
        if "log_loss" in runs[0]["result"]:
            losses = [run["result"]["log_loss"] - base["result"]["log_loss"] for run, base in zip(runs, rows["native"])]
            line["log_loss"], line["log_loss_more"] = (statistics.fmean(run["result"]["log_loss"] for run in runs),
                                                       [round(value, 5) for value in interval(losses)])
            line["bayes"] = {member: runs[0]["result"]["bayes_" + member] for member in ("area_percent", "log_loss")}
    valid = next(line["points"] for line in lines if line["method"] == control) <= -1
    for line in lines:
        line["valid"] = valid
    return lines


def against(rows, method, base):
    """A line of record "paper_claim": points of `method` against `base`, paired, and its part of the other's bytes."""
    points = [score(run)[1] - score(other)[1] for run, other in zip(rows[method], rows[base])]
    mean, low, high = interval(points)
    sent, other = (sum(run["wire_bytes"] for run in rows[name]) for name in (method, base))
    return {"record": "paper_claim", "model": rows[method][0]["job"]["model"], "method": method, "base": base, "seeds": len(points),
            "points": round(mean, 3), "low": round(low, 3), "high": round(high, 3), "part_of_bytes": round(sent / other, 4)}


def claims_of(rows, pairs):
    """Lines of record "paper_claim" of (method, base), printed."""
    claims = [against(rows, *pair) for pair in pairs]
    for claim in claims:
        print(f"{claim['method']} against {claim['base']}: {claim['points']:+.2f} [{claim['low']:+.2f}, {claim['high']:+.2f}] points, "
              f"{claim['part_of_bytes']:.3f} of its bytes")
    return claims


def scatter(lines, title):
    """An SVG: score over bytes of each method, with the interval of its points."""
    native = next(line for line in lines if line["method"] == "native")
    shown = [line for line in lines if native["score_percent"] - line["score_percent"] < 15]
    left, top, width, height = 70, 40, 620, 360
    logs = [math.log10(1 / line["wire_ratio"]) for line in shown]
    ends = [native["score_percent"] + line[end] for line in shown for end in ("low", "high") if math.isfinite(line[end])]
    scores = ends + [line["score_percent"] for line in shown]
    low_x, high_x = min(logs) - 0.1, max(logs) + 0.1
    low_y, high_y = min(scores) - 0.2, max(scores) + 0.2

    def at(x, y):
        return left + (x - low_x) / (high_x - low_x) * width, top + (high_y - y) / (high_y - low_y) * height

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 30}" height="{top + height + 60}" font-family="sans-serif" '
             f'font-size="12"><rect width="100%" height="100%" fill="white"/><text x="{left}" y="22" font-size="14">{title}</text>'
             f'<path d="M{left} {top}V{top + height}H{left + width}" fill="none" stroke="#444"/>']
    for x in [x for x in (-3, -2.5, -2, -1.5, -1, -0.5, 0) if low_x <= x <= high_x]:
        parts.append(f'<text x="{at(x, low_y)[0]:.1f}" y="{top + height + 18}" text-anchor="middle">1/{10 ** -x:.3g}</text>')
    for k in range(5):
        y = low_y + (high_y - low_y) * k / 4
        parts.append(f'<text x="{left - 8}" y="{at(low_x, y)[1] + 4:.1f}" text-anchor="end">{y:.2f}</text>')
    parts.append(f'<text x="{left + width / 2}" y="{top + height + 42}" text-anchor="middle">bytes against native (log)</text>')
    for line, x in zip(shown, logs):
        px, py = at(x, line["score_percent"])
        if math.isfinite(line["low"]):
            above, below = (at(x, native["score_percent"] + line[end])[1] for end in ("high", "low"))
            parts.append(f'<path d="M{px:.1f} {above:.1f}V{below:.1f}" stroke="#888"/>')
        parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4" fill="#1f5fa8"/><text x="{px + 7:.1f}" y="{py - 6:.1f}">{line["method"]}</text>')
    return "".join(parts) + "</svg>\n"


def markdown(lines):
    """The table that a README shows."""
    of = lines[0]
    rows = [f"{of['model']}, {of['seeds']} seeds; {'valid' if of['valid'] else 'NOT valid: the control loses less than a point'}", "",
            f"| method | rate | steps | {of['score']} % | points against native, 95 % | bytes: native / method | ms a step at {of['link']} |" +
            (f" log loss (truth: {of['bayes']['log_loss']:.4f}) | more than native, 95 % |" if "bayes" in of else ""),
            "|---" * (9 if "bayes" in of else 7) + "|"]
    for line in lines:
        points = "" if line["method"] == "native" else f"{line['points']:+.2f} [{line['low']:+.2f}, {line['high']:+.2f}]"
        rows.append(f"| {line['method']} | {line['rate']:g} | {line['steps']} | {line['score_percent']:.2f} | {points} | "
                    f"{line['wire_ratio']:g} | {1000 * line['step_seconds']:.1f} |")
        if "bayes" in line:
            mean, low, high = line["log_loss_more"]
            rows[-1] += f" {line['log_loss']:.4f} | " + ("" if line["method"] == "native" else f"{mean:+.4f} [{low:+.4f}, {high:+.4f}]") + " |"
    return "\n".join(rows)
