#!/usr/bin/env python3
"""Checks that clang-format leaves every source as it is.

usage: format_test.py SOURCE_ROOT CLANG_FORMAT
Skips (77) unless it is clang-format 14: others break lines elsewhere.
"""
import os
import re
import subprocess
import sys

from includes_test import sources


def main():
    root, program = sys.argv[1], sys.argv[2]
    if not program:
        print("skipped: there is no clang-format")
        return 77
    version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    if not re.search(r"version 14\.", version):
        print(f"skipped: {version.strip() or program} is not clang-format 14")
        return 77
    files = [path for path in sources(root) if re.search(r"\.(h|cpp|cu|cuh)$", path)]
    done = subprocess.run([program, "--dry-run", "-Werror"] + files, cwd=root, capture_output=True,
                          text=True)
    differing = sorted({os.path.relpath(line.split(":")[0], ".") for line in done.stderr.splitlines()
                        if "-Wclang-format-violations" in line})
    for path in differing:
        print(f"{path} is not formatted; run clang-format -i on it")
    print(f"{len(files)} files looked at, {len(differing)} differ")
    return 1 if differing or done.returncode != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
