#!/usr/bin/env python3
"""Counts the files of slimwire that a planned all-reduce with error feedback enters before its first kernel.

usage: call_path.py [BUILD_FOLDER]     default: build-call-path, made when it is missing

Compiles libslimwire.so with -finstrument-functions, runs tests/support/call_path.cpp on the emulator and prints the
way, a line a change of file, to the launch of the first kernel (codecs/launch.cpp is left): both calls and returns
change the file. Not counted: codecs/base (results, status, device functions), and what comes behind the launch and
takes long to compile, the codecs' bodies on the host. The last line leaves out inline functions of headers, too, most
of which return a member.
"""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLAGS = ("-finstrument-functions,-finstrument-functions-exclude-file-list="
         "/usr/\\,codecs/base/\\,codecs/simd/\\,/host/\\,codecs/numeric\\,codecs/float16\\,tests/,"
         "-Wno-error,-g1,-gdwarf-4")
POLICY = """version = 1
[[rule]]
name = "all"
match = { op = "allreduce" }
codec = "int4"
error_feedback = "ef14"
"""


def build(folder):
    if not (folder / "build.ninja").exists():
        flags = re.split(r"(?<!\\),", FLAGS)
        subprocess.run(["meson", "setup", str(folder), str(ROOT), "-Dcuda=disabled", "-Doptimization=1",
                        "-Dcpp_args=" + repr([flag.replace("\\,", ",") for flag in flags])],
                       check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", str(folder), "plugin/libslimwire.so", "tools/emulator/libnccl.so.2",
                    "tools/emulator/libcudart.so.13", "tests/support/call_path"], check=True,
                   stdout=subprocess.DEVNULL)


def events(folder):
    environment = dict(os.environ, LD_PRELOAD=str(folder / "plugin/libslimwire.so"), SLIMWIRE_POLICY=POLICY,
                       SLIMWIRE_EMU_DEVICES="2", LD_LIBRARY_PATH=str(folder / "tools/emulator"))
    text = subprocess.run([str(folder / "tests/support/call_path")], env=environment, check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    return [line.split() for line in text.splitlines() if "libslimwire" in line]


def sources(trace):
    """(file, function) by address; the events are those of one library."""
    addresses = sorted({address for _, _, address in trace})
    lines = subprocess.run(["addr2line", "-f", "-C", "-e", trace[0][1]], input="\n".join(addresses), check=True,
                           stdout=subprocess.PIPE, text=True).stdout.splitlines()

    def path_of(place):
        path = os.path.relpath(os.path.normpath(os.path.join(ROOT, "build", place.split(":")[0])), ROOT)
        # A row of the table is a function whose body stands in the file that includes it.
        return "plugin/preload/payload.cpp" if path == "collectives/call/nccl_api.def" else path

    return {address: (path_of(place), function.split("(")[0])
            for address, function, place in zip(addresses, lines[::2], lines[1::2])}


def way(trace, known):
    """The stays in files, [file, functions entered], to the end of the first launch."""
    stays, stack = [], []
    for kind, _, address in trace:
        file, function = known[address]
        if kind == "E":
            stack.append(file)
        else:
            stack.pop()
            if file == "codecs/launch.cpp" and "codecs/launch.cpp" not in stack:
                break
        now = stack[-1] if stack else file
        if not stays or stays[-1][0] != now:
            stays.append([now, []])
        if kind == "E":
            stays[-1][1].append(function)
    return stays


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build-call-path").resolve()
    build(folder)
    trace = events(folder)
    stays = way(trace, sources(trace))
    for file, functions in stays:
        print(f"{file:55} {', '.join(functions) or '(back)'}")
    print(f"{len({file for file, _ in stays})} files, {len(stays) - 1} changes of file")
    files = [file for file, _ in stays if not file.endswith(".h")]
    changes = sum(here != before for here, before in zip(files[1:], files))
    print(f"without the inline functions of headers {len(set(files))} files, {changes} changes of file")


if __name__ == "__main__":
    main()
