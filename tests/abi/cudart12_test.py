#!/usr/bin/env python3
"""Is everything of CUDA 13's runtime that slimwire's host code names the same in CUDA 12? It compiles
against our headers of 13, and is linked to whichever toolkit is there.

usage: cudart12_test.py check TABLE SOURCE_ROOT     each name that the sources have is in the table, and
                                                    is the same in 12 or mended
       cudart12_test.py make TABLE SOURCE_ROOT INCLUDE...    writes the table; INCLUDE is the folder
              nvidia/cuda_runtime/include of an unpacked nvidia-cuda-runtime-cu12 wheel (PyPI), one a version
"""
import os
import re
import subprocess
import sys
import tempfile

from make_layout_dump import PRINTERS, lines, preprocess

HEADERS = {"cuda_errors.h", "cuda_attributes.h", "driver_types.h", "cuda_runtime_api.h"}
# Names that differ, and why that does no harm.
MENDED = {"cudaStreamGetCaptureInfo": "collectives/call/backend.cpp takes what has its parameters",
          "cudaGraphEdgeData": "only pointed to, where it exists",
          "cudaMemPoolProps": "what 12.0 has no name for is zero",
          "cudaPointerAttributes": "12 fills the first 24 of our 88 bytes"}


def used(root):
    """Names of the runtime in what is built without nvcc and linked to it."""
    names = set()
    for room in ("codecs", "collectives", "plugin", "topology", "tools/cli", "tools/demo_train", "tests/gpu", "tests/support"):
        for folder, _, files in os.walk(os.path.join(root, room)):
            for file in files:
                if file.endswith((".cpp", ".h")):
                    with open(os.path.join(folder, file), encoding="utf-8") as source:
                        code = re.sub(r"//.*", "", source.read())
                    names |= set(re.findall(r"\bcuda[A-Z][A-Za-z0-9]+\b", code))
    return names


def declarations(include, names):
    """Our headers' declarations of these names."""
    code, macros = preprocess(["c++"], include, "cuda_runtime_api.h", HEADERS)
    found = []
    for line in dict.fromkeys(lines(code, macros)):
        name = re.search(r"\b(cuda\w+)", line)
        if name and name.group(1) in names:
            found.append((name.group(1), line))
    return found


def seen(include, declared):
    """What a program prints of the declarations when built against `include`: name -> lines."""
    with tempfile.TemporaryDirectory() as folder:
        return seen_in(os.path.join(folder, "seen"), include, declared)


def seen_in(path, include, declared):
    missing = set()
    while True:
        kept = [(name, line) for at, (name, line) in enumerate(declared) if at not in missing]
        places = [at for at in range(len(declared)) if at not in missing]
        head = ["#include <cstddef>", "#include <cstdint>", "#include <cstdio>", "#include <typeinfo>",
                "#include <cuda_runtime_api.h>", *PRINTERS, "int main() {"]
        with open(path + ".cpp", "w", encoding="utf-8") as out:
            out.write("\n".join(head + [line for _, line in kept] + ["}"]) + "\n")
        built = subprocess.run(["c++", "-w", "-I" + include, path + ".cpp", "-o", path],
                               capture_output=True, text=True, check=False)
        if built.returncode == 0:
            break
        wrong = {places[int(at) - len(head) - 1]
                 for at in re.findall(r"seen\.cpp:(\d+):\d+: error", built.stderr) if int(at) > len(head)}
        if not wrong:
            raise SystemExit(built.stderr)
        missing |= wrong
    text = subprocess.run([path], check=True, capture_output=True, text=True).stdout.splitlines()
    found = {name: [] for name, _ in declared}
    for (name, _), line in zip(kept, text):
        found[name].append(line)
    return found


def make(table, root, includes):
    own = os.path.join(root, "tools/emulator/include")
    declared = declarations(own, used(root))
    ours = seen(own, declared)
    verdicts = {name: "same" for name in ours}
    for include in includes:
        theirs = seen(include, declared)
        for name in ours:
            if ours[name] != theirs[name] and verdicts[name] == "same":
                verdicts[name] = "differs: " + "; ".join(
                    sorted(set(theirs[name]) - set(ours[name])) or ["lacks it or a part"])
    with open(table, "w", encoding="utf-8") as out:
        out.writelines(f"{name} {verdict}\n" for name, verdict in sorted(verdicts.items()))
    return check(table, root)


def check(table, root):
    with open(table, encoding="utf-8") as file:
        verdicts = dict(line.rstrip("\n").split(" ", 1) for line in file)
    declared = {name for name, _ in declarations(os.path.join(root, "tools/emulator/include"), used(root))}
    unknown = sorted(declared - set(verdicts))
    broken = sorted(name for name in declared & set(verdicts)
                    if verdicts[name] != "same" and name not in MENDED)
    for name in unknown:
        print(f"{name}: is it the same in CUDA 12? `cudart12_test.py make` finds out")
    for name in broken:
        print(f"{name} of CUDA 12 {verdicts[name]}")
    print(f"{len(declared)} names of the runtime, {len(unknown)} unknown, {len(broken)} differ unmended")
    return int(bool(unknown or broken) or len(declared) < 60)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        sys.exit(make(sys.argv[2], os.path.abspath(sys.argv[3]), sys.argv[4:]))
    sys.exit(check(sys.argv[2], os.path.abspath(sys.argv[3])))
