#!/usr/bin/env python3
"""Checks tests/features.toml against the build: the tests it names exist, and no test of the build is
unknown to it. Prints the score.

usage: features_test.py FEATURES_TOML BUILD_ROOT [PLACE...]
PLACE are those of host, emulator, gpu and sanitizers that this build has tests for. A row whose tests live in a
place this build lacks is counted apart.
"""
import fnmatch
import json
import os
import subprocess
import sys
import tomllib

PLACES = ("host", "emulator", "gpu", "sanitizers")


def forms(name):
    """All readings of a listed name: instances before it, parameters after it."""
    suite, case = name.rsplit(".", 1) if "." in name else (name, "")
    return {(s, c) for s in suite.split("/") for c in case.split("/")}


def all_cases(test):
    """(suite, case) pairs of one GoogleTest program; None when it does not start."""
    environment = dict(os.environ, **test.get("env", {}))
    try:
        done = subprocess.run(test["cmd"] + ["--gtest_list_tests"], capture_output=True, text=True,
                              env=environment, timeout=60)
    except OSError:
        return None
    if done.returncode != 0:
        return None
    cases, suite = set(), ""
    for line in done.stdout.splitlines():
        name = line.split("#")[0].strip()
        if line.startswith(" "):
            cases |= forms(suite + "." + name)
        elif name.endswith("."):
            suite = name[:-1]
    return cases


class Build:
    """The tests Meson knows, with the cases of their programs."""

    def __init__(self, root):
        with open(os.path.join(root, "meson-info", "intro-tests.json"), encoding="utf-8") as file:
            self.tests = {test["name"]: test for test in json.load(file)}
        self.cases = {}

    def knows(self, reference):
        """Whether `room.topic` or `room.topic:Suite.Case` (or `room.topic:Suite`, or
        `room.*`) is in the build."""
        topic, _, case = reference.partition(":")
        if "*" in topic:
            return bool(fnmatch.filter(self.tests, topic))
        test = self.tests.get(topic)
        if test is None or not case:
            return test is not None
        if topic not in self.cases:
            self.cases[topic] = all_cases(test) if test["protocol"] == "gtest" else set()
        if self.cases[topic] is None:
            print(f"{topic} cannot be asked for its cases: is it built?")
            return False
        suite, _, name = case.partition(".")
        return any(suite == s and name in ("", c) for s, c in self.cases[topic])


def check(table, build, places):
    """Problems, and the counts for the score."""
    problems, proved, elsewhere, unproved = [], 0, 0, []
    known, names = set(), set()
    for row in table.get("feature", []):
        name = row.get("name", "?")
        if name in names:
            problems.append(f"two features are called '{name}'")
        names.add(name)
        unknown_keys = set(row) - {"name", "tests", "where", "gap"}
        if unknown_keys:
            problems.append(f"{name}: unknown keys {sorted(unknown_keys)}")
        where = row.get("where", [])
        if not where or set(where) - set(PLACES):
            problems.append(f"{name}: where must name some of {', '.join(PLACES)}")
        known |= {test.partition(":")[0] for test in row.get("tests", [])}
        if not row.get("tests"):
            if not row.get("gap"):
                problems.append(f"{name}: no tests, and no gap that says why")
            unproved.append(f"{name} ({row.get('gap', '')})")
            continue
        missing = [test for test in row["tests"] if not build.knows(test)]
        absent_place = set(where) - set(places)
        # A topic of a place that this build lacks is not built; a wrong case of a built one is wrong.
        wrong = [test for test in missing
                 if not absent_place or test.partition(":")[0] in build.tests]
        problems += [f"{name}: {test} does not exist" for test in wrong]
        if not missing:
            proved += 1
        elif not wrong:
            elsewhere += 1
    for row in table.get("internal", []):
        known |= set(row.get("tests", []))
        if not row.get("why"):
            problems.append(f"internal tests {row.get('tests')} need a why")
    problems += [f"{test} is in the build but not in the file" for test in sorted(build.tests)
                 if not any(fnmatch.fnmatchcase(test, pattern) for pattern in known)]
    return problems, proved, elsewhere, unproved, len(names)


def main():
    with open(sys.argv[1], "rb") as file:
        table = tomllib.load(file)
    build = Build(sys.argv[2])
    problems, proved, elsewhere, unproved, total = check(table, build, sys.argv[3:])
    for problem in problems:
        print(problem)
    for gap in unproved:
        print(f"not proved yet: {gap}")
    print(f"{proved} of {total} features have their tests in this build, {elsewhere} have tests that "
          f"need another machine or build, {len(unproved)} have none; {len(build.tests)} tests")
    return 1 if problems or total == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
