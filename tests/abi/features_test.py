#!/usr/bin/env python3
"""Checks tests/features.toml against the build: every glob that it names is the name of a test, and prints the score.

usage: features_test.py FEATURES_TOML BUILD_ROOT [PLACE...]
PLACE are those of emulator, gpu and sanitizers that this build has tests for. A feature whose tests need another
place is counted apart.
"""
import fnmatch
import json
import os
import sys
import tomllib

# The tests that only some builds have; the first glob that matches says which.
NEEDS = {
    "fuzz.*": "sanitizers",
    "codecs.gpu": "gpu",
    "codecs.kernel_resources": "gpu",
    "tools.emulator_nvcc_client": "gpu",
    "abi.*_layout": "gpu",
    "codecs.*": "",
    "collectives.*": "",
    "topology.*": "",
    "*": "emulator",
}


def check(features, tests, places):
    """Problems, and how many features have all their tests in this build."""
    problems, proved = [], 0
    for name, globs in features.items():
        if not isinstance(globs, list) or not globs:
            problems.append(f"{name}: needs an array of tests")
            continue
        missing = [glob for glob in globs if not fnmatch.filter(tests, glob)]
        for glob in missing:
            need = next(place for pattern, place in NEEDS.items() if fnmatch.fnmatchcase(glob, pattern))
            if need == "" or need in places:
                problems.append(f"{name}: {glob} does not exist")
        proved += not missing
    return problems, proved


def main():
    with open(sys.argv[1], "rb") as file:
        features = tomllib.load(file)
    with open(os.path.join(sys.argv[2], "meson-info", "intro-tests.json"), encoding="utf-8") as file:
        tests = [test["name"] for test in json.load(file)]
    problems, proved = check(features, tests, sys.argv[3:])
    for problem in problems:
        print(problem)
    print(f"{proved} of {len(features)} features have all their tests in this build; {len(tests)} tests")
    return 1 if problems or not features else 0


if __name__ == "__main__":
    sys.exit(main())
