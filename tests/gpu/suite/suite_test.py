"""The driver with steps that hang, break, lack something or run out of time: the others run, and the page says it."""
import json
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
from machine import Machine, Skip
from results import LINES, PAGE, Results
from suite import Step, Suite

# A rank that started a process in a group of its own and ends for nobody.
HANGING = "set -m; sleep 300 & echo $! >$TEST_FOLDER/child; echo the last words; sleep 300"


def hang(suite):
    suite.job("never", ["sh", "-c", HANGING], ranks=1, limit_s=2)
    suite.job("after_it", ["true"])


def one_dies(suite):
    suite.job("one", ["sh", "-c", "exit $((RANK * 3))"])


def broken(suite):
    raise ValueError("a defect of the step")


def no_program(suite):
    suite.job("absent", ["/nowhere/program"])


def lacking(suite):
    raise Skip("no such thing here")


def fine(suite):
    suite.job("echo", ["sh", "-c", "echo figure $WORLD_SIZE"], pattern="figure 2", figures=lambda ended: {"ranks": 2})
    suite.check("sum", 1 + 1 == 2, "right")


STEPS = [Step("hang", 30, hang, ""), Step("dies", 30, one_dies, ""), Step("broken", 30, broken, ""),
         Step("absent", 30, no_program, ""), Step("lacking", 30, lacking, ""),
         Step("unbuilt", 30, fine, "", ("plugin/no_such_library.so",)), Step("fine", 30, fine, "")]


class SuiteTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = Path(self.scratch.name)

    def run_steps(self, steps, seconds=60, resume=False):
        machine = Machine(True, self.folder)
        suite = Suite(machine, Results(self.folder / "results", resume), seconds)
        suite.least_s = 0.2
        suite.run(steps)
        lines = (self.folder / "results" / LINES).read_text().splitlines()
        return [json.loads(line) for line in lines], (self.folder / "results" / PAGE).read_text()

    def test_no_step_stops_the_next(self):
        records, page = self.run_steps(STEPS)
        outcomes = {one["step"]: one["outcome"] for one in records if one["record"] == "gpu_step"}
        self.assertEqual(outcomes, {"hang": "failed", "dies": "failed", "broken": "failed", "absent": "failed",
                                    "lacking": "skipped", "unbuilt": "failed", "fine": "passed"})
        jobs = {one["job"]: one for one in records if one["record"] == "gpu_job"}
        self.assertIn("not done after 2 s", jobs["never"]["why"])
        self.assertEqual(jobs["after_it"]["outcome"], "passed")
        self.assertEqual(jobs["one"]["why"], "exit status 3")
        self.assertEqual(jobs["echo"]["figures"], {"ranks": 2})
        for text in ("the last words", "ValueError: a defect of the step", "no_such_library.so", "/nowhere/program",
                     "no such thing here", "| fine | passed |"):
            self.assertIn(text, page)
        child = int((self.folder / "results/jobs/hang/never/child").read_text())
        state = Path(f"/proc/{child}/stat")
        self.assertTrue(not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z",
                        "what a job started lives on")

    def test_continue_repeats_what_the_time_cut(self):
        cut = Step("cut", 30, lambda suite: suite.job("long", ["sleep", "300"]), "")
        begin = time.monotonic()
        records, page = self.run_steps([STEPS[-1], cut, STEPS[2]], seconds=3)
        self.assertLess(time.monotonic() - begin, 60)
        self.assertEqual([one["outcome"] for one in records if one["record"] == "gpu_step"], ["passed", "unfinished"])
        self.assertIn("| broken | not begun |", page)
        done = Step("cut", 30, fine, "")
        records, page = self.run_steps([broken_if_run("fine"), done, STEPS[2]], resume=True)
        self.assertEqual([(one["step"], one["outcome"]) for one in records if one["record"] == "gpu_step"],
                         [("fine", "passed"), ("cut", "passed"), ("broken", "failed")])
        self.assertEqual(len([one for one in records if one.get("job") == "sum"]), 2)
        self.assertNotIn("unfinished", page)


def broken_if_run(name):
    return Step(name, 30, broken, "")


if __name__ == "__main__":
    unittest.main()
