"""Counts what tools/test ran: count_results.py EXTRA BUILD_FOLDER...

Reads Meson's logs meson-logs/run-*.json (one line a test) and run-*.junit.xml (one entry a GoogleTest
case) of each folder, and EXTRA, lines "name<TAB>passed|failed|skipped<TAB>why" of steps that are not
Meson's. A GoogleTest program counts by its cases, any other test as one; a program that failed although
none of its cases did (a crash, a leak at exit, a timeout) counts as one failure more. Prints what failed
and was skipped, then "N passed, N failed"; the exit code is 1 if anything failed or nothing ran.
"""

import collections
import json
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

GOOD = {"OK", "EXPECTEDFAIL"}


class Counts:
    def __init__(self):
        self.numbers = collections.Counter()
        self.failed = []
        self.skipped = collections.Counter()

    def add(self, name, verdict, why=""):
        self.numbers[verdict] += 1
        if verdict == "failed":
            self.failed.append(name + (f": {why}" if why else ""))
        elif verdict == "skipped":
            self.skipped[f"{name}: {why or 'no reason given'}"] += 1


def cases_by_test(junit_path, tests):
    """GoogleTest cases of each Meson test; JUnit suites are named "project.project:suite / test.Suite"."""
    cases = collections.defaultdict(list)
    if not junit_path.exists():
        return cases
    # The output of a failed test is inside, with any control characters it printed; XML allows none.
    text = re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f]", "?", junit_path.read_text(errors="replace"))
    for suite in ElementTree.fromstring(text.encode()).iter("testsuite"):
        name = suite.get("name", "").split(".", 1)[-1].split(" / ")[-1]
        owners = [test for test in tests if name.startswith(test + ".")]
        if not owners:
            continue
        for case in suite.iter("testcase"):
            skip = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                verdict, why = "failed", ""
            elif skip is not None or case.get("status") == "notrun":
                verdict, why = "skipped", "disabled"
                if skip is not None:
                    why = (skip.get("message") or "").strip().splitlines()
                    why = why[-1] if why else ""
            else:
                verdict, why = "passed", ""
            cases[max(owners, key=len)].append((f"{name}.{case.get('name')}", verdict, why))
    return cases


def count_log(counts, label, log_path):
    results = [json.loads(line) for line in log_path.read_text().splitlines() if line.strip()]
    plain = {result["name"]: result["name"].split(" / ")[-1] for result in results}
    cases = cases_by_test(log_path.with_suffix(".junit.xml"), set(plain.values()))
    for result in results:
        name, verdict = plain[result["name"]], result["result"]
        own = cases.get(name, [])
        for case, case_verdict, why in own:
            counts.add(f"{label}{case}", case_verdict, why)
        if verdict in GOOD:
            if not own:
                counts.add(label + name, "passed")
        elif verdict == "SKIP":
            if not own:
                counts.add(label + name, "skipped", last_line(result))
        elif not any(case_verdict == "failed" for _, case_verdict, _ in own):
            counts.add(label + name, "failed", f"{verdict.lower()}, exit code {result.get('returncode')}")


def last_line(result):
    lines = (result.get("stdout", "") + result.get("stderr", "")).strip().splitlines()
    return lines[-1] if lines else ""


def main(arguments):
    extra, *folders = map(pathlib.Path, arguments)
    counts = Counts()
    for line in extra.read_text().splitlines():
        name, verdict, why = line.split("\t")
        counts.add(name, verdict, why)
    for folder in folders:
        label = "asan: " if folder.name.endswith("-asan") else ""
        for log_path in sorted((folder / "meson-logs").glob("run-*.json")):
            count_log(counts, label, log_path)
    for name in counts.failed:
        print("failed:", name)
    for reason, times in sorted(counts.skipped.items()):
        print("skipped:", reason + (f" ({times} times)" if times > 1 else ""))
    numbers = counts.numbers
    line = f"{numbers['passed']} passed, {numbers['failed']} failed"
    print(line + (f", {numbers['skipped']} skipped" if numbers["skipped"] else ""), flush=True)
    return 1 if numbers["failed"] or not numbers["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
