"""Prints the ninja targets that the tests of suites need: suite_targets.py BUILD_FOLDER SUITE..."""

import json
import pathlib
import subprocess
import sys

MESON = "/usr/bin/meson" if pathlib.Path("/usr/bin/meson").exists() else "meson"


def introspect(folder, what):
    return json.loads(subprocess.run([MESON, "introspect", what, folder], check=True, capture_output=True).stdout)


def main(folder, *suites):
    root = pathlib.Path(folder).resolve()
    files = {target["id"]: target["filename"] for target in introspect(folder, "--targets")}
    needed = set()
    for test in introspect(folder, "--tests"):
        if not {name.split(":")[-1] for name in test["suite"]}.isdisjoint(suites):
            needed.update(test["cmd"][:1])
            for target in test["depends"]:
                needed.update(files[target])
    for path in map(pathlib.Path, needed):
        if path.is_relative_to(root):
            print(path.relative_to(root))


if __name__ == "__main__":
    main(*sys.argv[1:])
