"""What a run found: a line of JSON for each job the moment it is known, and a page made of the lines.

Lines, each with "v": 1 and "record":
  gpu_machine   what it ran on; one for each start of the run
  gpu_job       step, job, outcome (passed, failed, skipped), seconds, why and log (failed), figures
  gpu_step      step, outcome, seconds, why; unfinished: the run's time was over, --continue repeats it
"""
import json
import shutil
from collections import Counter

LINES, PAGE = "gpu.jsonl", "summary.md"
EACH_RUN = ("build", "probe")  # steps that the others of the same run stand on


class Results:
    def __init__(self, folder, keep):
        """keep: goes on with the lines of the run before."""
        self.folder, self.records = folder, []
        folder.mkdir(parents=True, exist_ok=True)
        if not keep:
            shutil.rmtree(folder / "jobs", ignore_errors=True)
        elif (folder / LINES).exists():
            for line in (folder / LINES).read_text().splitlines():
                try:
                    self.records.append(json.loads(line))
                except ValueError:  # the last one, where the run was killed
                    pass
            done = self.done()
            self.records = [one for one in self.records if one.get("step") in done or "step" not in one]
        with open(folder / LINES, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(one) + "\n" for one in self.records)

    def done(self):
        """Names of the steps that need no repetition."""
        return {one["step"] for one in self.records
                if one["record"] == "gpu_step" and one["outcome"] != "unfinished" and one["step"] not in EACH_RUN}

    def add(self, record, **members):
        self.records.append({"v": 1, "record": record, **members})
        with open(self.folder / LINES, "a", encoding="utf-8") as file:
            file.write(json.dumps(self.records[-1]) + "\n")
        if record == "gpu_job":
            shown = members.get("why") or " ".join(f"{k}={v}" for k, v in members.get("figures", {}).items())
            print(f"{members['outcome']:8} {members['step']}/{members['job']:32} {members['seconds']:6.1f} s  "
                  f"{shown[:200]}", flush=True)

    def jobs(self, step):
        return [one for one in self.records if one["record"] == "gpu_job" and one["step"] == step]

    def count(self):
        counted = Counter(one["outcome"] for one in self.records if one["record"] == "gpu_job")
        # A step that failed by itself, not by one of its jobs.
        for one in self.records:
            if one["record"] == "gpu_step" and one["outcome"] in ("failed", "skipped"):
                counted[one["outcome"]] += not any(job["outcome"] == one["outcome"] for job in self.jobs(one["step"]))
        return counted["passed"], counted["failed"], counted["skipped"]

    def write_page(self, left):
        """left: names of the steps that did not run."""
        (self.folder / PAGE).write_text("\n".join(self.page(left)) + "\n", encoding="utf-8")

    def page(self, left):
        passed, failed, skipped = self.count()
        lines = ["# What the GPU showed", "", f"{passed} passed, {failed} failed, {skipped} skipped.", ""]
        machine = {}
        for one in self.records:
            if one["record"] == "gpu_machine":
                machine.update({k: v for k, v in one.items() if k not in ("v", "record")})
        lines += [f"- {name}: {value}" for name, value in machine.items()]
        lines += ["", "| step | outcome | seconds | jobs |", "|---|---|---|---|"]
        for one in self.records:
            if one["record"] == "gpu_step":
                of = Counter(job["outcome"] for job in self.jobs(one["step"]))
                jobs = ", ".join(f"{count} {outcome}" for outcome, count in sorted(of.items()))
                lines.append(f"| {one['step']} | {one['outcome']} | {one['seconds']:.0f} | "
                             f"{one.get('why') or jobs} |")
        lines += [f"| {name} | not begun | | `--continue` |" for name in left]
        lines += self.failures() + self.figures()
        return lines

    def failures(self):
        lines = []
        for one in self.records:
            if one.get("outcome") == "failed" and (one["record"] == "gpu_job" or one.get("log")):
                lines += ["", f"## Failed: {one['step']} {one.get('job', '')}".rstrip(), "", one.get("why", "")]
                if one.get("log"):
                    lines += ["", "```", one["log"], "```"]
        return lines

    def figures(self):
        lines = []
        for one in self.records:
            if one["record"] == "gpu_job" and one.get("figures"):
                lines += ["", f"## {one['step']} {one['job']}", "", "| figure | value |", "|---|---|"]
                lines += [f"| {name} | {value} |" for name, value in one["figures"].items()]
        return lines
