#!/usr/bin/env python3
"""Checks which room includes which (the arrows of the house), that nothing follows the process's locale, that
kernels read anew what other thread blocks write, and that every header of the product compiles alone.

usage: includes_test.py arrows SOURCE_ROOT
       includes_test.py locale SOURCE_ROOT
       includes_test.py fresh SOURCE_ROOT
       includes_test.py alone SOURCE_ROOT BUILD_ROOT COMPILER...
The flags for the last come from compile_commands.json, so a header sees what its room's sources see.
"""
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys

ROOMS = ("plugin", "collectives", "codecs", "topology", "tools", "tests")
# The rooms of collectives in their order: each may include those before it.
COLLECTIVES = ("call", "policy", "observe", "plan", "communicator", "state", "identity", "algorithms", "feedback",
               "adaptive", "dispatch")
# The rooms of codecs: what a family stands on, then the families, none of which includes another; the files of
# codecs/ itself are the contract, which includes base.
CODEC_GROUND = ("codecs/base", "codecs/*")
CODEC_LANES = ("simd", "gpu")
CODEC_FAMILIES = ("block_float", "block_int", "bounded", "cast", "low_rank", "ops", "palette", "quantizers", "residual",
                  "sparse")
# The folders of tools/cli in their order: each may include those before it.
COMMANDS = ("common", "codec", "report", "state", "topo", "run", "doctor", "bench", "advise", "policy")
# The parts of the net plugin do not know each other, but its own interfaces.
NET = tuple(f"plugin/net/{name}" for name in ("abi", "engine.h", "wire.h", "settings.h", "nccl_log.h", "throttle.h"))

# Which every library of the emulator reads.
EMULATOR = ("tools/emulator/fault_plan.h", "collectives/call/launcher_names.h", "codecs/base")


def rooms_of_collectives(*rooms):
    return tuple(f"collectives/{room}" for room in rooms)


# Folder -> what its files may include; "folder/*" are the files of the folder itself. The longest matching folder
# decides.
ALLOWED = {
    "codecs/base": ("codecs/base",),
    "codecs": CODEC_GROUND,
    **{f"codecs/{room}": CODEC_GROUND + (f"codecs/{room}",) for room in CODEC_LANES},
    **{f"codecs/{room}": CODEC_GROUND + tuple(f"codecs/{lanes}" for lanes in CODEC_LANES) + (f"codecs/{room}",)
       for room in CODEC_FAMILIES},
    "topology/cost": ("topology/cost", "codecs/base"),
    "topology/machine": ("topology/machine", "codecs/base"),
    "topology/readers": ("topology/readers", "topology/machine", "codecs/base"),
    **{f"collectives/{room}": tuple(f"collectives/{lower}" for lower in COLLECTIVES[:place + 1]) + ("codecs", "topology")
       for place, room in enumerate(COLLECTIVES)},
    # The exported functions ask dispatch/, the C API names tensors, the net plugin reads variables and reports.
    "plugin": ("plugin",),
    "plugin/preload": ("plugin/preload", *rooms_of_collectives("call", "communicator", "dispatch")),
    "plugin/capi": ("plugin/capi", "codecs/base",
                    *rooms_of_collectives("call", "communicator/process.h", "identity", "dispatch")),
    "plugin/audit": ("plugin/audit", "codecs/base"),
    "plugin/dropin": ("plugin/dropin",),
    "plugin/net": ("plugin/net", "codecs/base", *rooms_of_collectives("call", "policy", "observe")),
    "plugin/net/abi": ("plugin/net/abi",),
    "plugin/net/engine": ("plugin/net/engine", *NET, "codecs"),
    "plugin/net/tables": ("plugin/net/tables", *NET, "codecs/base", *rooms_of_collectives("call", "policy")),
    "plugin/net/tuner": ("plugin/net/tuner", *NET),
    "plugin/net/ucx": ("plugin/net/ucx", *NET, "codecs/base", "collectives/call"),
    "plugin/net/wrapped": ("plugin/net/wrapped", *NET, "codecs/base"),
    "tools": ("tools",),
    # A command makes no plan but explain, which asks the planner for one.
    **{f"tools/cli/{room}": tuple(f"tools/cli/{lower}" for lower in COMMANDS[:place + 1]) +
       ("tools/cli/generated", "plugin/net", "codecs", "topology", *rooms_of_collectives(*COLLECTIVES[:-1]))
       for place, room in enumerate(COMMANDS)},
    # A stranger's program like demo_train, whose ranks meet as its own do; it needs the types' bits, too.
    "tools/cli/bench/worker": ("tools/cli/bench/worker", "tools/demo_train", "codecs/float16.h"),
    "tools/cli/policy/explain_command.cpp": ("tools/cli", "codecs", "topology", "collectives/dispatch/planner.h",
                                             *rooms_of_collectives(*COLLECTIVES[:-1])),
    # Strangers to slimwire: the emulator knows two interfaces, NCCL's signatures and the launchers'
    # variables, the trainer nothing.
    "tools/emulator": ("tools/emulator", *EMULATOR),
    "tools/emulator/include/nccl_later.h": ("tools/emulator/include", "collectives/call/nccl_api.def"),
    "tools/emulator/cudart": ("tools/emulator/cudart", "tools/emulator/checking", *EMULATOR),
    "tools/emulator/checking": ("tools/emulator/checking", "tools/emulator/cudart", *EMULATOR),
    "tools/emulator/nccl": ("tools/emulator/nccl", "plugin/net/abi", *EMULATOR),
    "tools/emulator/nccl/api/api_collectives.cpp": ("tools/emulator/nccl", "collectives/call/nccl_api.def", *EMULATOR),
    "tools/emulator/nccl/api/api_later.cpp": ("tools/emulator/nccl", "collectives/call/nccl_api.def", *EMULATOR),
    "tools/demo_train": ("tools/demo_train",),
    "tests": ROOMS,
}
# Made by a build file: as it is included -> its room.
GENERATED = {"codec_list.h": "codecs", "absent_functions.inc": "tools/emulator/cudart", "tools/cli/build_info.h": "tools/cli"}
# Folder of parts of sources, which have no #pragma once -> other folders of such sources.
PARTS = {"codecs/simd": "codecs/[a-z_]+/host"}
SOURCE = re.compile(r"\.(h|cpp|cu|cuh|def|inc)$")


def under(path, folder):
    if folder.endswith("/*"):
        return os.path.dirname(path) == folder[:-2] or path == folder[:-2] + "/generated"
    return path == folder or path.startswith(folder + "/")


def sources(root):
    for room in ROOMS:
        for folder, folders, names in os.walk(os.path.join(root, room)):
            folders[:] = [name for name in folders if not name.startswith((".", "build"))]
            for name in sorted(names):
                if SOURCE.search(name):
                    yield os.path.relpath(os.path.join(folder, name), root)


def included(root, path):
    """Yields (line, file relative to the root or None when it does not exist, text) of quoted includes."""
    with open(os.path.join(root, path), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not match:
                continue
            text = match.group(1)
            beside = os.path.normpath(os.path.join(os.path.dirname(path), text))
            if text in GENERATED:
                yield number, GENERATED[text] + "/generated", text
            elif os.path.isfile(os.path.join(root, text)):
                yield number, text, text
            elif under(path, "tools/emulator/include") and os.path.isfile(os.path.join(root, beside)):
                yield number, beside, text  # a stand-in for a system header
            else:
                yield number, None, text


def arrow_errors(root):
    """All includes against the arrows; also the number of includes looked at."""
    errors, count = [], 0
    for path in sources(root):
        room = max((folder for folder in ALLOWED if under(path, folder)), key=len)
        for number, target, text in included(root, path):
            count += 1
            if target is None:
                errors.append(f'{path}:{number}: "{text}" is no file; name it from the repository root')
            elif not any(under(target, folder) for folder in ALLOWED[room]):
                errors.append(f'{path}:{number}: {room} must not include "{text}" '
                              f"(allowed: {', '.join(ALLOWED[room])})")
    return errors, count


def arrows(root):
    errors, count = arrow_errors(root)
    print("\n".join(errors))
    print(f"{count} includes looked at, {len(errors)} against the arrows")
    return 1 if errors or count < 100 else 0


# In libraries, which live in programs of any locale: numbers as codecs/base/number_text.h reads and writes them.
FOLLOWS_THE_LOCALE = re.compile(r'%[-+#0]*[0-9*]*(\.[0-9*]+)?[lL]?[aefgAEFG](?![a-zA-Z])|\b(strto(d|f|ld)|sto(d|f|ld)|'
                                r'atof|wcstod|[io]?stringstream|to_wstring|localeconv)\b')
LIBRARIES = ("collectives", "plugin", "codecs", "topology", "tools/emulator")
# What std::to_string and streams write of a float follows it, too: of a name that the file declares as one, and as
# nothing else, of a cast and of a literal.
DECLARED_FLOAT = re.compile(r"\b(?:double|float)\s+([a-z]\w*)\b(?!\s*\()")
DECLARED_ELSE = re.compile(r"\b(?:auto|bool|char|int|u?int\d+_t|long|size_t|unsigned)\s+([a-z]\w*)\b(?!\s*\()")
WRITTEN = re.compile(r"(?<![.>\w])to_string\(((?:[^()]|\([^()]*\))*)\)|<<\s*((?:static_cast<\w+>\([^()]*\)|[\w.]|->)+)")
FLOAT = re.compile(r"static_cast<(double|float)>|\b\d+\.\d|\b\d+e-?\d")


def written_floats(text):
    """Line numbers of the floats that `text` gives to std::to_string or writes into a stream."""
    floats = set(DECLARED_FLOAT.findall(text)) - set(DECLARED_ELSE.findall(text))
    for match in WRITTEN.finditer(text):
        written = (match.group(1) or match.group(2) or "").strip()
        if FLOAT.search(written) or re.split(r"\W+", written)[-1] in floats:
            yield text.count("\n", 0, match.start()) + 1


def locale(root):
    """Programs never leave the locale "C" that they begin with; libraries do not ask which one there is."""
    known = "double rate = 0;\nint n = 0;\nto_string(rate) + to_string(n);\nout << rate << n;\nto_string(0.5)"
    if list(written_floats(known)) != [3, 4, 5]:
        print("this test does not see floats that are written")
        return 1
    errors, count = [], 0
    for path in sources(root):
        if under(path, "tests"):
            continue
        library = any(under(path, room) for room in LIBRARIES)
        with open(os.path.join(root, path), encoding="utf-8") as file:
            lines = [line.split("//")[0].rstrip("\n") for line in file]
        count += len(lines)
        floats = set(written_floats("\n".join(lines))) if library else ()
        for number, code in enumerate(lines, 1):
            if re.search(r"\bsetlocale\b|\bstd::locale\b", code) or number in floats or \
                    library and FOLLOWS_THE_LOCALE.search(code):
                errors.append(f"{path}:{number}: follows the process's locale: {code.strip()}")
    print("\n".join(errors + [f"{count} lines looked at, {len(errors)} follow the locale"]))
    return 1 if errors or count < 10000 else 0


def fresh(root):
    """Kernels wait by load_fresh of look_back.cuh: __ldcv and __ldcg are no volatile assembly, so nvcc moves them out of
    the loop that waits."""
    errors, count = [], 0
    for path in (path for path in sources(root) if under(path, "codecs") and path.endswith((".cu", ".cuh"))):
        with open(os.path.join(root, path), encoding="utf-8") as file:
            text = file.read()
        count += text.count("load_fresh(")
        allowed = 1 if path.endswith("gpu/look_back.cuh") else 0  # load_fresh itself, on the host
        if len(re.findall(r"\b__ldc[vg]\(", text)) > allowed:
            errors.append(f"{path} has __ldcv or __ldcg; load_fresh of codecs/gpu/look_back.cuh reads anew")
    print("\n".join(errors + [f"{count} reads of other thread blocks' words, {len(errors)} files with others"]))
    return 1 if errors or count < 10 else 0


def flags_by_folder(build):
    """Include, define and language flags of one source in each folder."""
    flags = {}
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        for entry in json.load(file):
            if not entry["file"].endswith(".cpp"):
                continue
            source = os.path.normpath(os.path.join(entry["directory"], entry["file"]))
            words = shlex.split(entry["command"])
            kept = []
            for word, following in zip(words, words[1:] + [""]):
                if word == "-isystem":
                    kept += [word, following]
                elif re.match(r"-(I|D|std=|m|f(?!sanitize))|-isystem.", word):
                    kept.append(word)
            compiled = [source]
            if re.search(r"-unity\d+\.cpp$", source):
                with open(source, encoding="utf-8") as unity:
                    compiled = re.findall(r'#include\s*[<"](.*\.cpp)[">]', unity.read())
            # The richest command of a folder: tests and tools use more libraries than others.
            for folder in {os.path.dirname(os.path.normpath(one)) for one in compiled}:
                if len(kept) > len(flags.get(folder, [])):
                    flags[folder] = kept
    return flags


def first_includes(root):
    """The headers that some source includes before anything else."""
    firsts = set()
    for path in sources(root):
        if path.endswith(".cpp"):
            with open(os.path.join(root, path), encoding="utf-8") as file:
                first = re.search(r'^\s*#\s*include\s+["<](.*)[">]', file.read(), re.M)
            firsts.add(first.group(1) if first else "")
    return firsts


def included_as_part(root, path):
    """Whether only sources of the header's own folder include it, or of those that PARTS names."""
    folder = os.path.dirname(path)
    users = {os.path.dirname(source) for source in sources(root)
             for _, target, _ in included(root, source) if target == path}
    return bool(users) and all(user == folder or re.fullmatch(PARTS.get(folder, ""), user) for user in users)


def compile_alone(compiler, build, flags, path):
    command = compiler + flags + ["-fsyntax-only", "-w", "-x", "c++", "-include", path, "/dev/null"]
    done = subprocess.run(command, cwd=build, capture_output=True, text=True)
    return path, done.returncode, done.stderr


def alone(root, build, compiler):
    by_folder, firsts = flags_by_folder(build), first_includes(root)
    jobs, skipped, parts = [], [], []
    for path in sources(root):
        if not path.endswith(".h"):
            continue
        folder = os.path.dirname(os.path.join(root, path))
        while folder not in by_folder and len(folder) > len(root):
            folder = os.path.dirname(folder)
        with open(os.path.join(root, path), encoding="utf-8") as file:
            text = file.read()
        if re.search(r"__global__|__device__", text):
            skipped.append(path)  # for nvcc, and for the host tests that supply these words
            continue
        if not re.search(r"^#pragma once|^#ifndef \w+_H_?\b", text, re.M):
            parts.append(path)  # a part of one source; its head must say so
            continue
        if path in firsts or path.startswith("tests/"):
            continue  # the build has compiled it at the top of a source; tests are compiled as they are
        flags = by_folder.get(folder, ["-std=c++20", "-I" + root,
                                       "-I" + os.path.join(root, "tools/emulator/include")])
        jobs.append((os.path.join(root, path), flags))
    failed = 0
    for path in parts:
        if not included_as_part(root, path):
            failed += 1
            print(f"{path} has no #pragma once and is not the part of its folder's sources")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, code, text in pool.map(lambda job: compile_alone(compiler, build, job[1], job[0]), jobs):
            if code != 0:
                failed += 1
                print(f"{os.path.relpath(path, root)} does not compile alone:\n{text}")
    print(f"{len(jobs)} headers compiled alone, {failed} failed; not compiled: {len(skipped)} for nvcc, "
          f"{len(parts)} parts of a source")
    return 1 if failed or len(jobs) < 20 else 0


def main():
    mode, root = sys.argv[1], os.path.realpath(sys.argv[2])
    if mode in ("arrows", "locale", "fresh"):
        return {"arrows": arrows, "locale": locale, "fresh": fresh}[mode](root)
    return alone(root, os.path.realpath(sys.argv[3]), sys.argv[4:])


if __name__ == "__main__":
    sys.exit(main())
