#!/usr/bin/env python3
"""Writes a C++ program that prints the ABI which our stand-in headers declare.

Called by tests/abi/meson.build with the headers of tools/emulator/include; the output is compiled once
against our headers and once against the toolkit's, and compare_with_toolkit.py compares what they print.
The names are read from our preprocessed headers, so a new declaration is compared without touching a
list: every struct (size, alignment, offset and size of each member), enumerator, integer macro and
function type.

usage: make_layout_dump.py --include HEADER --version MACRO --compiler CXX --output FILE HEADER...
"""
import argparse
import os
import re
import subprocess

# What prints each line of a dump. A macro may lead a function's name to another symbol.
PRINTERS = (
    '#pragma GCC diagnostic ignored "-Winvalid-offsetof"',
    '#pragma GCC diagnostic ignored "-Wdeprecated-declarations"',
    '#define VALUE(n) std::printf("value %s %lld\\n", #n, static_cast<long long>(n));',
    '#define TYPE(t) std::printf("type %s size %zu align %zu\\n", #t, sizeof(t), alignof(t));',
    '#define MEMBER(t, m) std::printf("member %s.%s offset %zu size %zu\\n", #t, #m, '
    'offsetof(t, m), sizeof(static_cast<t*>(nullptr)->m));',
    '#define SYMBOL(f) #f',
    '#define FUNCTION(f) std::printf("function %s %s %s\\n", #f, SYMBOL(f), typeid(decltype(&f)).name());',
)


def preprocess(compiler, include_dir, header, own_names):
    """The declarations of our headers after the preprocessor, and our headers' own macro lines."""
    command = compiler + ["-E", "-dD", "-I" + include_dir, "-x", "c++", "-"]
    text = subprocess.run(command, input=f"#include <{header}>\n", check=True, capture_output=True,
                          text=True).stdout
    code, macros, ours = [], [], False
    for line in text.splitlines():
        marker = re.match(r'# \d+ "([^"]*)"', line)
        if marker:
            folder, name = os.path.split(os.path.abspath(marker.group(1)))
            ours = folder == include_dir and name in own_names
        elif ours and line.startswith("#define"):
            macros.append(line)
        elif ours and not line.startswith("#"):
            code.append(line)
    return "\n".join(code), "\n".join(macros)


def bodies(text, keyword):
    """Yields (how to name the type, body) of each `keyword [attributes] [tag] { body } [name];`."""
    attributes = r"(?:__attribute__\s*\(\(.*?\)\)\s*)?"
    for match in re.finditer(r"\b" + keyword + r"\s+" + attributes + r"(\w+)?\s*\{", text):
        before = text[:match.start()]
        if before.count("{") - before.count("}") > open_externs(before):
            continue  # inside another type: reached as a member of that one
        depth, end = 1, match.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        name = re.match(r"\s*(\w+)\s*;", text[end:])
        kind = name.group(1) if name else f"{keyword} {match.group(1)}"
        yield kind, text[match.end():end - 1]


def open_externs(text):
    """How many of the open braces before this point belong to extern "C"."""
    return min(len(re.findall(r'extern\s+"C"\s*\{', text)), 1)


def members(body):
    """Names of the direct members; those of unnamed inner structs are reached through their own name."""
    while True:  # an inner struct or union counts as one member
        flat = re.sub(r"\{[^{}]*\}", " inner ", body)
        if flat == body:
            break
        body = flat
    for statement in body.split(";"):
        if "(" in statement and "(*" not in statement.replace(" ", ""):
            continue  # constructors and conversion operators of dim3
        function_pointer = re.search(r"\(\s*\*\s*(\w+)\s*\)", statement)
        if function_pointer:
            yield function_pointer.group(1)
            continue
        statement = re.sub(r"\[[^\]]*\]|__attribute__\s*\(\(.*?\)\)", "", statement)
        for declarator in statement.split(","):
            name = re.search(r"(\w+)\s*$", declarator)
            if name:
                yield name.group(1)


def lines(code, macro_lines):
    for name, value in re.findall(r"^#define (\w+) (.+)$", macro_lines, flags=re.M):
        if re.fullmatch(r"\(?-?(0[xX][0-9a-fA-F]+|\d+)[uUlL]*\)?|\(\(int\)-?\d+\)", value.strip()):
            yield f"VALUE({name})"
    for kind, body in bodies(code, "enum"):
        yield f"TYPE({kind})"
        for item in body.split(","):
            enumerator = re.match(r"\s*(\w+)", item)
            if enumerator:
                yield f"VALUE({enumerator.group(1)})"
    for keyword in ("struct", "union"):
        for kind, body in bodies(code, keyword):
            yield f"TYPE({kind})"
            for member in members(body):
                yield f"MEMBER({kind}, {member})"
    attributes = r"(?:__attribute__\s*\(\(.*?\)\))?"
    function = r"\b(p?nccl[A-Z]\w*|cuda[A-Z]\w*)\s*\([^{};]*\)\s*" + attributes + r"\s*;"
    for name in re.findall(function, code):
        yield f"FUNCTION({name})"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--include", required=True, help="header the program includes")
    parser.add_argument("--version", required=True, help="macro that both sides must agree on")
    parser.add_argument("--compiler", required=True, help="C++ compiler command")
    parser.add_argument("--skip", default="SLIMWIRE", help="regex of declarations that cannot be compared")
    parser.add_argument("--output", required=True)
    parser.add_argument("headers", nargs="+", help="our headers to read names from")
    options = parser.parse_args()
    include_dir = os.path.dirname(os.path.abspath(options.headers[0]))
    own_names = {os.path.basename(header) for header in options.headers}
    code, macros = preprocess(options.compiler.split(), include_dir, options.include, own_names)
    found = [line for line in dict.fromkeys(lines(code, macros)) if not re.search(options.skip, line)]
    if len(found) < 30:
        raise SystemExit(f"only {len(found)} declarations found in {options.headers}")
    with open(options.output, "w", encoding="utf-8") as out:
        out.write("#include <cstddef>\n#include <cstdint>\n#include <cstdio>\n#include <typeinfo>\n")
        out.write(f"#include <{options.include}>\n")
        out.writelines(line + "\n" for line in PRINTERS)
        out.write("int main() {\n")
        out.write(f"std::printf(\"version %d\\n\", static_cast<int>({options.version}));\n")
        out.writelines(line + "\n" for line in found)
        out.write("return 0;\n}\n")


if __name__ == "__main__":
    main()
