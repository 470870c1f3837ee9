#!/usr/bin/env python3
"""Looks at what is shipped: exported names, needed libraries, and what our own objects refer to.

usage: libraries_test.py exports NCCL_API_DEF SLIMWIRE_H LIBRARY...    exports those names and
                                                     slimwire's own
       libraries_test.py only PATTERN COUNT LIBRARY   exports COUNT names, all of the pattern
       libraries_test.py needed NAMES LIBRARY     NAMES, MAY, RUNPATH, SONAME and FLAGS as
                                                  "key=value" words
       libraries_test.py objects ARCHIVE_OR_OBJECT...
       libraries_test.py cudart SYMBOL_LIST [LIBRARY]   the emulator's; skips (77) without a library
       libraries_test.py nccl NCCL_H NCCL_API_DEF NCCL_PASSED [LIBRARY]   the emulator's, as the last
Our own objects are looked at in the archives, before libstdc++ is linked in: a library that is
preloaded into strangers' processes must not print, end the process or run code when it is loaded.
"""
import os
import re
import subprocess
import sys

# Not libm, which would take every process that a hook is loaded into time and pages.
ALWAYS_ALLOWED = {"libc.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1",
                  "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
# std::terminate is what a noexcept function refers to; it is not called by name.
FORBIDDEN = re.compile(
    r"^(abort|exit|_exit|_Exit|quick_exit|__assert_fail|perror|puts|putchar|"
    r"v?f?printf|__v?f?printf_chk|fputs|fputc|fwrite|stderr|stdout|"
    r"__cpu_model|__cpu_indicator_init|"  # libgcc fills them when the library is loaded
    r"std::(cout|cerr|clog)|std::ios_base::Init::.*)(@.*)?$")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def handling(definition):
    """Functions that nccl_api.def lists, without "nccl" -> how each is handled."""
    handled, twins = {}, []
    with open(definition, encoding="utf-8") as file:
        for kind, name, second in re.findall(r"^SLIMWIRE_NCCL(\w*)\((\w+), (\w+)", file.read(), re.M):
            handled[name] = {"": second, "_ONE_SIDED": "count"}.get(kind, "compress")
            twins += [name + "Config"] if kind == "_COLLECTIVE" else []
    return {**handled, **dict.fromkeys(twins, "compress")}


def passed(path):
    """Functions that nccl_passed.txt leaves to NCCL: why -> [(name, first version)], in its order."""
    reasons, last = {}, None
    with open(path, encoding="utf-8") as file:
        for line in file:
            words = line.split()
            if not words or words[0] == "#":
                continue
            if words[0][0].isdigit():
                last += [(name, words[0]) for name in words[1:]]
            else:
                last = reasons.setdefault(line.strip(), [])
    return reasons


def public_names(definition):
    return {"nccl" + name for name in handling(definition)}


def api_names(header):
    """Functions that slimwire.h declares."""
    with open(header, encoding="utf-8") as file:
        return set(re.findall(r"^SLIMWIRE_FUNCTION\([^()]*?(slimwire_\w+),", file.read(), re.M | re.S))


def exports(definition, header, libraries):
    api = api_names(header)
    wanted = public_names(definition) | api
    failed = len(wanted) < 20 or len(api) < 6
    for library in libraries:
        found = {line.split()[-1].split("@")[0]
                 for line in run("nm", "-D", "--defined-only", library).splitlines()}
        for text, names in (("lacks", wanted - found), ("also exports", found - wanted)):
            if names:
                failed = True
                print(f"{library} {text} {', '.join(sorted(names))}")
        print(f"{library}: {len(found)} names exported")
    return int(failed)


def only(pattern, count, library):
    found = {line.split()[-1].split("@")[0]
             for line in run("nm", "-D", "--defined-only", library).splitlines()}
    others = sorted(name for name in found if not re.fullmatch(pattern, name))
    print(f"{library} exports {', '.join(sorted(found))}")
    return int(bool(others) or len(found) != int(count))


def needed(words, library):
    wanted = dict(word.split("=", 1) for word in words)
    text = run("readelf", "-dW", library)
    found = set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))
    runpath = "".join(re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", text))
    soname = "".join(re.findall(r"\(SONAME\).*\[(.*)\]", text))
    extra = {name for name in wanted.get("NEEDED", "").split(",") if name}
    problems = []
    if not extra <= found:
        problems.append(f"does not need {extra - found}")
    others = found - extra - ALWAYS_ALLOWED - set(wanted.get("MAY", "").split(","))
    if others:
        problems.append(f"needs {', '.join(sorted(others))}")
    if runpath != wanted.get("RUNPATH", ""):
        problems.append(f"has run path '{runpath}', not '{wanted.get('RUNPATH', '')}'")
    if soname != wanted["SONAME"]:
        problems.append(f"is called '{soname}', not '{wanted['SONAME']}'")
    if wanted.get("FLAGS", "") not in "".join(re.findall(r"\(FLAGS_1\)(.*)", text)):
        problems.append(f"has no flag {wanted['FLAGS']}")
    if "TEXTREL" in text:
        problems.append("has text relocations")
    for problem in problems:
        print(f"{library} {problem}")
    print(f"{library}: {', '.join(sorted(found))}")
    return int(bool(problems))


def object_problems(archive):
    """What the objects of one archive, or one object, must not have; and how many objects and symbols were seen."""
    problems, member, objects, symbols = [], os.path.basename(archive), int(archive.endswith(".o")), 0
    for line in run("nm", "-C", "--undefined-only", archive).splitlines():
        if line.endswith(":"):
            member = line[:-1].split("/")[-1]
            objects += 1
        elif line.strip():
            symbols += 1
            name = line.split(maxsplit=1)[1]
            if FORBIDDEN.match(name):
                problems.append(f"{member} refers to {name}")
    for line in run("readelf", "-SW", archive).splitlines():
        if line.startswith("File: "):
            member = line.split("/")[-1].rstrip(")")
        section = re.search(r"\]\s+(\.(?:init_array|ctors|preinit_array)[.\d]*)\s+\S+\s+\S+\s+\S+\s+(\w+)", line)
        if section and int(section.group(2), 16) != 0:
            problems.append(f"{member} has a static constructor ({section.group(1)})")
    return problems, objects, symbols


def objects(archives):
    failed = False
    for archive in archives:
        problems, count, symbols = object_problems(archive)
        for problem in problems:
            print(f"{archive}: {problem}")
        print(f"{archive}: {count} objects, {symbols} references, {len(problems)} problems")
        failed |= bool(problems) or count == 0
    return int(failed)


def cudart(symbol_list, library):
    """Every name of the list, under the version node of the real library."""
    with open(symbol_list, encoding="utf-8") as file:
        wanted = set(re.findall(r"^\w+$", file.read(), re.M))
    found = {line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()}
    missing = sorted(name for name in wanted if f"{name}@@libcudart.so.13" not in found)
    for name in missing:
        print(f"{library} lacks {name}@@libcudart.so.13")
    print(f"{library}: {len(wanted)} names wanted, {len(missing)} missing")
    return int(bool(missing) or len(wanted) < 90)


def declared_later(header):
    """Names that nccl_later.h beside our nccl.h adds to it, some of them from nccl_api.def."""
    with open(header.replace("nccl.h", "nccl_later.h"), encoding="utf-8") as file:
        names = re.findall(r"^SLIMWIRE_NCCL_LATER\((nccl\w+),", file.read(), re.M)
    with open(os.path.join(os.path.dirname(header), "../../../collectives/call/nccl_api.def"), encoding="utf-8") as file:
        table = re.findall(r"^SLIMWIRE_NCCL_(ONE_SIDED|COLLECTIVE)\((\w+),", file.read(), re.M)
    return names + ["nccl" + name + ("Config" if kind == "COLLECTIVE" else "") for kind, name in table]


def declared(header):
    """Names of the functions that our nccl.h declares: through its macro, which adds the p twin; and
    of those that came later."""
    with open(header, encoding="utf-8") as file:
        text = file.read()
    names = re.findall(r"^SLIMWIRE_NCCL_FUNCTION\([^,]+,\s*(nccl\w+),", text, re.M)
    return list(dict.fromkeys(names + declared_later(header)))


def nccl(header, definition, passed_by, library):
    """Every function of the header and of the newest NCCL, and its twin pncclX at the same address; programs may
    interpose the first, so it is weak."""
    newest = {name for functions in passed(passed_by).values() for name, _ in functions} | public_names(definition)
    wanted = sorted(set(declared(header)) | newest - {"ncclResetDebugInitInternal"})  # which has no twin
    found = {}
    for line in run("nm", "-D", "--defined-only", library).splitlines():
        address, kind, name = line.split()
        found[name.split("@")[0]] = (address, kind)
    problems = []
    for name in wanted:
        plain, twin = found.get(name), found.get("p" + name)
        if plain is None or twin is None:
            problems.append(f"lacks {name if plain is None else 'p' + name}")
        elif plain[0] != twin[0] or plain[1] != "W":
            problems.append(f"{name} is no weak alias of p{name}")
    for problem in problems:
        print(f"{library}: {problem}")
    print(f"{library}: {len(wanted)} functions wanted, {len(problems)} problems")
    return int(bool(problems) or len(wanted) < 90)


def main():
    mode, arguments = sys.argv[1], sys.argv[2:]
    if mode == "exports":
        return exports(arguments[0], arguments[1], arguments[2:])
    if mode == "only":
        return only(*arguments)
    if mode == "needed":
        return needed(arguments[:-1], arguments[-1])
    if mode == "objects":
        return objects(arguments)
    if len(arguments) < {"cudart": 2, "nccl": 4}[mode]:
        print(f"skipped: this build has no emulator ({mode})")
        return 77
    return {"cudart": cudart, "nccl": nccl}[mode](*arguments)


if __name__ == "__main__":
    sys.exit(main())
