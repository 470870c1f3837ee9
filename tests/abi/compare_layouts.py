#!/usr/bin/env python3
"""Compares what two layout programs print: the first built against our headers, the second against
the toolkit's. Exit 0 when every line is equal, 77 (skip) when there is no toolkit or its version is not
the one that our headers describe, 1 otherwise with the differing lines.

usage: compare_layouts.py OWN [REAL]
"""
import subprocess
import sys


def output(program):
    text = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return text.splitlines()


def main():
    own = output(sys.argv[1])
    if len(sys.argv) < 3:
        print("skipped: no toolkit headers to compare with")
        return 77
    real = output(sys.argv[2])
    if own[0] != real[0]:
        print(f"skipped: our headers describe {own[0]}, the installed ones are {real[0]}")
        return 77
    differing = [(a, b) for a, b in zip(own, real) if a != b]
    for a, b in differing:
        print(f"ours: {a}\nreal: {b}")
    print(f"{len(own) - 1} declarations compared, {len(differing)} differ")
    return 1 if differing or len(own) != len(real) else 0


if __name__ == "__main__":
    sys.exit(main())
