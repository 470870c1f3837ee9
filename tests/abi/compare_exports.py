#!/usr/bin/env python3
"""Checks what the emulated library exports: every name and version of the real one, and nothing else but
the emulator's own names and those of nccl_later.h. Exit 77 (skip) without the real library.

usage: compare_exports.py OWN [REAL]
"""
import pathlib
import subprocess
import sys

from libraries_test import declared_later

NCCL_H = pathlib.Path(__file__).resolve().parents[2] / "tools/emulator/include/nccl.h"


def exports(library):
    text = subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", library], check=True,
                          capture_output=True, text=True).stdout
    fields = [line.split() for line in text.splitlines()]
    return {entry[-1] for entry in fields if entry[-2] != "A"}


def main():
    if len(sys.argv) < 3:
        print("skipped: no toolkit library to compare with")
        return 77
    own, real = exports(sys.argv[1]), exports(sys.argv[2])
    missing = sorted(real - own)
    later = {prefix + name for name in declared_later(str(NCCL_H)) for prefix in ("", "p")}
    extra = sorted(name for name in own - real - later if not name.startswith("slimwire_emulator_"))
    for name in missing:
        print(f"missing: {name}")
    for name in extra:
        print(f"not in the real library: {name}")
    print(f"{len(real)} names compared")
    return 1 if missing or extra or not real else 0


if __name__ == "__main__":
    sys.exit(main())
