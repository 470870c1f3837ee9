#!/usr/bin/env python3
"""Keeps the generated parts of documents current, and what documents and comments name existing.

usage: documents_test.py [--write] nccl NCCL_API_DEF NCCL_H NCCL_PASSED DOCUMENT
       documents_test.py [--write] output PROGRAM NAME DOCUMENT
       documents_test.py names SOURCE_ROOT
The first makes the table of NCCL functions; the second takes what PROGRAM prints. Either stands in the
document between `<!-- generated: NAME -->` and `<!-- end: NAME -->` (NAME is nccl for the first).
With --write the document is brought up to date. The third follows the links of documents, and looks for the files
that comments name.
"""
import os
import re
import subprocess
import sys

from libraries_test import declared, handling, passed

HANDLING = {
    "compress": "may be replaced by a compressed exchange",
    "count": "forwarded and counted; one-sided: the peer makes no call that could decode, so they stay native",
    "track": "forwarded; slimwire follows what it makes, ends or asks",
}


def nccl_table(definition, header, passed_by):
    handled = handling(definition)
    names = [name.removeprefix("nccl") for name in declared(header)]
    reasons = passed(passed_by)
    others = {name.removeprefix("nccl"): why for why, functions in reasons.items() for name, _ in functions}
    absent = set(handled) - set(names)
    unexplained = set(names) - set(handled) - set(others)
    twice = set(handled) & set(others)
    if absent or unexplained or twice or set(handled.values()) - set(HANDLING) or len(names) < 40:
        raise SystemExit(f"cannot make the table: {absent}, {unexplained}, {twice}, {len(names)}")
    lines = ["| handling | functions |", "|---|---|"]
    for kind, text in HANDLING.items():
        functions = [name for name in dict.fromkeys([*handled, *names]) if handled.get(name) == kind]
        lines.append(f"| {text} | {', '.join(f'`nccl{name}`' for name in functions)} |")
    for why, functions in reasons.items():
        lines.append(f"| not exported: {why} | {', '.join(f'`{name}`' for name, _ in functions)} |")
    return "\n".join(lines)


# Files of others that comments name: CUDA's, NCCL's, PyTorch's, UCX's.
OTHERS = {"host_runtime.h", "prims_ll.h", "prims_ll128.h", "topo.h", "reducer.cpp", "ucp.h"}
NAMED = re.compile(r"(?<![\w./*])(?:\w+/)*\w+\.(?:h|cpp|cuh|cu)\b")
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)\)")


def anchors(document):
    with open(document, encoding="utf-8") as file:
        headings = re.findall(r"^#+ (.*)$", file.read(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def names(root):
    """Prints what is named and is not there."""
    listed = subprocess.run(["git", "-C", root, "ls-files"], check=True, capture_output=True, text=True).stdout.split()
    ends = {path[at:] for path in listed for at in [0] + [slash.end() for slash in re.finditer("/", path)]}
    looked, lost = 0, 0
    for path in listed:
        is_document = path.endswith(".md")
        if not is_document and not path.endswith((".h", ".cpp", ".cuh", ".cu")):
            continue
        with open(os.path.join(root, path), encoding="utf-8") as file:
            lines = file.read().splitlines()
        for number, line in enumerate(lines, 1):
            missing = []
            if is_document:
                for target, anchor in LINK.findall(line):
                    place = os.path.join(root, os.path.dirname(path), target) if target else os.path.join(root, path)
                    looked += 1
                    if not os.path.exists(place) or (anchor and anchor not in anchors(place)):
                        missing.append(f"{target}#{anchor}" if anchor else target)
            elif comment := re.search(r"(?:^|\s)//(.*)", line):
                found = NAMED.findall(comment.group(1))
                looked += len(found)
                missing = [name for name in found if name not in ends and os.path.basename(name) not in OTHERS]
            for name in missing:
                print(f"{path}:{number}: there is no {name}")
                lost += 1
    print(f"{looked} names looked at, {lost} lead nowhere")
    return 0 if looked > 100 and lost == 0 else 1


def main():
    arguments = sys.argv[1:]
    if arguments[0] == "names":
        return names(arguments[1])
    write = arguments[0] == "--write"
    mode, *rest = arguments[1:] if write else arguments
    if mode == "nccl":
        definition, header, passed_by, document = rest
        name, wanted = "nccl", nccl_table(definition, header, passed_by)
    else:
        program, name, document = rest
        wanted = subprocess.run([program], check=True, capture_output=True, text=True).stdout.strip()
    with open(document, encoding="utf-8") as file:
        text = file.read()
    begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
    match = re.search(re.escape(begin) + r"\n(.*?)\n?" + re.escape(end), text, re.S)
    if not match:
        print(f"{document} has no place '{begin}' ... '{end}'")
        return 1
    if match.group(1).strip() == wanted:
        print(f"{document}: '{name}' is current, {len(wanted.splitlines())} lines")
        return 0
    if write:
        with open(document, "w", encoding="utf-8") as file:
            file.write(text[:match.start()] + f"{begin}\n{wanted}\n{end}" + text[match.end():])
        print(f"{document}: '{name}' written")
        return 0
    print(f"{document}: '{name}' is not current; run {sys.argv[0]} --write {' '.join(arguments)}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
