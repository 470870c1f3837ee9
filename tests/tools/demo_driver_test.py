"""The parts of tools/demo that need no job: wire bytes from reports, failures, statistics, JSON, page."""

import dataclasses
import importlib.util
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "demo_driver"))

import page
import runs
import table

INT4 = runs.Configuration("int4+EF", "int4", True)
NATIVE = runs.Configuration("native", "native", False)


def trainer_record(**changes):
    return {"steps": 50, "step_ms": 100.0, "comm_ms": 80.0, "dense_bytes_per_step": 4000, "accuracy": 89.0,
            "loss_curve": [{"step": 13, "train_loss": 2.0}, {"step": 26, "train_loss": 0.5}], **changes}


def key(**changes):
    """All calls of one rank in 50 steps: 4000 dense bytes a step, ring of 4: 6000 sent."""
    return {"v": 1, "record": "key", "op": "allreduce", "redop": "avg", "dtype": "f32", "count": 1000,
            "codec": "int4", "reason": "rule env", "calls": 50, "wire_bytes": 50 * 750,
            "native_wire_bytes": 50 * 6000, **changes}


class WireBytes(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.scratch.name)
        self.addCleanup(self.scratch.cleanup)

    def write(self, ranks, *records):
        for rank in range(ranks):
            (self.folder / f"report-{rank}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))

    def test_are_averaged_over_ranks_and_steps(self):
        statistics = key(redop="sum", dtype="f64", codec="native", wire_bytes=10**9)
        broadcast = key(op="broadcast", redop="none", codec="native", wire_bytes=10**9)
        unused = key(codec="native", reason="under stream capture", calls=0, wire_bytes=0, native_wire_bytes=0)
        self.write(4, {"v": 1, "record": "process"}, key(), statistics, broadcast, unused)
        training = runs.read_wire(INT4, trainer_record(), self.folder, 4)
        self.assertEqual(training.wire_bytes, 750)
        self.assertEqual(training.dense_bytes, 6000)

    def test_native_is_the_ring_formula(self):
        training = runs.read_wire(NATIVE, trainer_record(), self.folder, 4)
        self.assertEqual((training.wire_bytes, training.dense_bytes), (6000, 6000))

    def test_call_that_went_native_is_no_result(self):
        self.write(4, key(codec="native", reason="count below min_bytes"))
        with self.assertRaisesRegex(runs.RunFailed, "went native: count below min_bytes"):
            runs.read_wire(INT4, trainer_record(), self.folder, 4)

    def test_missing_report_names_the_rank(self):
        self.write(3, key())
        with self.assertRaisesRegex(runs.RunFailed, "no report for rank 3"):
            runs.read_wire(INT4, trainer_record(), self.folder, 4)

    def test_reports_that_miss_calls_are_no_result(self):
        self.write(4, key(native_wire_bytes=49 * 6000))
        with self.assertRaisesRegex(runs.RunFailed, "the buckets make 6000"):
            runs.read_wire(INT4, trainer_record(), self.folder, 4)


class Failures(unittest.TestCase):
    def test_show_the_failing_rank(self):
        lines = ["[0] demo_train: 4 ranks", "[2] demo_train: rank 2: error: ncclAllReduce: remote process exited",
                 "[0] fine", "slimwire: rank 2 failed first: exit code 1"]
        text = runs.describe_failure("int4, accuracy", 1, lines)
        self.assertIn("exit code 1 (rank 2)", text)
        self.assertIn("ncclAllReduce", text)
        self.assertNotIn("fine", text)

    def test_without_a_named_rank_show_the_end(self):
        text = runs.describe_failure("native, speed", 125, [f"line {i}" for i in range(40)])
        self.assertIn("line 39", text)
        self.assertNotIn("line 20", text)


def result(configuration, seed, accuracy, step_ms, comm_ms, wire):
    def training(step, comm, sent):
        return runs.Training(trainer_record(accuracy=accuracy, step_ms=step, comm_ms=comm), sent, 6000)
    return runs.Result(configuration, seed, training(9, 1, wire), training(step_ms, comm_ms, wire),
                       training(100, 80, 6000))


class Numbers(unittest.TestCase):
    def test_record_has_exactly_the_members_of_the_schema(self):
        record = result(INT4, 3, 88.5, 25, 16, 750).record()
        self.assertEqual(list(record), ["name", "codec", "seed", "accuracy", "step_ms", "comm_ms", "wire_bytes",
                                        "dense_bytes", "speedup", "comm_speedup", "efficiency"])
        self.assertEqual(record["name"], "int4+EF")
        self.assertEqual(record["codec"], "int4")
        self.assertEqual((record["speedup"], record["comm_speedup"]), (4.0, 5.0))
        self.assertEqual(record["efficiency"], 5.0 / 8.0)
        self.assertEqual((record["wire_bytes"], record["dense_bytes"]), (750, 6000))

    def test_paired_interval_is_students(self):
        # Differences 1, 2, 3, 4, 5: mean 3, deviation sqrt(2.5), t(4) 2.776, half-width 1.963.
        paired = table.compare_pairs([11, 12, 13, 14, 15], [10, 10, 10, 10, 10])
        self.assertAlmostEqual(paired.mean, 3)
        self.assertAlmostEqual(paired.deviation, 2.5**0.5)
        self.assertAlmostEqual(paired.half_interval, 2.776 * (2.5 / 5) ** 0.5, places=3)

    def test_pairs_must_match(self):
        with self.assertRaises(ValueError):
            table.compare_pairs([1, 2], [1])

    def test_table_and_page_show_every_configuration(self):
        results = [result(NATIVE, seed, 89 + seed, 100, 80, 6000) for seed in (1, 2)]
        results += [result(INT4, seed, 88 + seed, 25, 16, 750) for seed in (1, 2)]
        rows = table.summarise(results)
        self.assertEqual([row.name for row in rows], ["native", "int4+EF"])
        self.assertAlmostEqual(rows[1].paired.mean, -1)
        text = table.render(rows) + table.render_paired(rows)
        self.assertIn("4.00x", text)
        self.assertIn("8.00x", text)
        drawn = page.render("set-up", rows, results)
        self.assertEqual(drawn.count("<title>int4+EF</title>"), 1)
        self.assertIn("89.50 %", drawn)
        self.assertNotIn("<script", drawn)
        self.assertNotRegex(drawn, r'(src|href)=')

    def test_before_accuracy_runs_the_table_has_no_accuracy(self):
        fast = [dataclasses.replace(result(NATIVE, 1, 0, 100, 80, 6000), accuracy=None),
                dataclasses.replace(result(INT4, 1, 0, 25, 16, 750), accuracy=None)]
        text = table.render(table.summarise(fast))
        self.assertIn("4.00x", text)
        self.assertNotIn("nan", text)
        self.assertNotIn("against native", text)

    def test_diverged_run_can_be_drawn(self):
        diverged = result(INT4, 1, 10.0, 25, 16, 750)
        diverged.accuracy.record["loss_curve"] = [{"step": 13, "train_loss": None}]
        self.assertIn("no finite loss", page.draw([diverged]))


class Arguments(unittest.TestCase):
    def setUp(self):
        driver = pathlib.Path(runs.__file__).with_name("__main__.py")
        spec = importlib.util.spec_from_file_location("demo_main", driver)
        self.demo = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.demo)

    def rows(self, *arguments):
        return [c.name for c in self.demo.parse_arguments(list(arguments)).configurations]

    def test_six_rows_unless_all_are_asked_for(self):
        self.assertEqual(self.rows(), ["native", "bf16", "int8", "int4+EF", "int2", "int2+EF"])
        self.assertEqual(len(self.rows("--all")), 9)
        self.assertEqual(self.rows("--only", "int4"), ["native", "int4"])


if __name__ == "__main__":
    unittest.main()
