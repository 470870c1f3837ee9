#!/usr/bin/env python3
"""Compares what is ours with the toolkit's. Exit 77 (skip) where there is none, or another version than our headers
describe; 1 with what differs.

usage: compare_with_toolkit.py exports OWN [REAL]   names and versions that the libraries export: every one of the real,
                                                    and nothing else but the emulator's own and those of nccl_later.h
       compare_with_toolkit.py layouts OWN [REAL]   what two layout programs print, built against our headers and the
                                                    toolkit's
"""
import pathlib
import subprocess
import sys

from libraries_test import declared_later

NCCL_H = pathlib.Path(__file__).resolve().parents[2] / "tools/emulator/include/nccl.h"


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def exports(library):
    fields = [line.split() for line in output("nm", "-D", "--defined-only", "--with-symbol-versions", library)]
    return {entry[-1] for entry in fields if entry[-2] != "A"}


def compare_exports(own, real):
    own, real = exports(own), exports(real)
    missing = sorted(real - own)
    later = {prefix + name for name in declared_later(str(NCCL_H)) for prefix in ("", "p")}
    extra = sorted(name for name in own - real - later if not name.startswith("slimwire_emulator_"))
    for name in missing:
        print(f"missing: {name}")
    for name in extra:
        print(f"not in the real library: {name}")
    print(f"{len(real)} names compared")
    return 1 if missing or extra or not real else 0


def compare_layouts(own, real):
    own, real = output(own), output(real)
    if own[0] != real[0]:
        print(f"skipped: our headers describe {own[0]}, the installed ones are {real[0]}")
        return 77
    differing = [(a, b) for a, b in zip(own, real) if a != b]
    for a, b in differing:
        print(f"ours: {a}\nreal: {b}")
    print(f"{len(own) - 1} declarations compared, {len(differing)} differ")
    return 1 if differing or len(own) != len(real) else 0


def main():
    if len(sys.argv) < 4:
        print("skipped: there is no toolkit to compare with")
        return 77
    return {"exports": compare_exports, "layouts": compare_layouts}[sys.argv[1]](*sys.argv[2:4])


if __name__ == "__main__":
    sys.exit(main())
