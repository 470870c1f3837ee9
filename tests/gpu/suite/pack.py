"""What a machine without Debian's packages and without a network must bring to build and run the suite, in one archive:
headers of toml++, nlohmann-json, xxHash, pugixml, UCX, fmt and CLI11, pugixml's archive, and libraries: UCX's, which the
net plugin opens, and fmt's for what was staged. For machines of this architecture.
"""
import subprocess
import sys
import tarfile
from pathlib import Path

HEADERS = ["toml++", "nlohmann", "ucp", "ucs", "uct", "ucm", "pugixml.hpp", "pugiconfig.hpp", "xxhash.h", "fmt",
           "CLI"]
ARCHIVE = "libpugixml.a"
LIBRARIES = ["libucp.so.0", "libuct.so.0", "libucs.so.0", "libucm.so.0", "libnuma.so.1", "libfmt.so.9"]
PACKAGES = ("libtomlplusplus-dev nlohmann-json3-dev libxxhash-dev libpugixml-dev libucx-dev "
            "libfmt-dev libcli11-dev")
MOST_BYTES = 20_000_000


def members():
    """Path here and in the archive."""
    for name in HEADERS:
        yield Path("/usr/include") / name, f"include/{name}"
    found = subprocess.run(["g++", f"-print-file-name={ARCHIVE}"], check=True, capture_output=True, text=True)
    yield Path(found.stdout.strip()), f"lib/{ARCHIVE}"
    cache = subprocess.run(["/sbin/ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    places = {}
    for line in cache.splitlines():
        if "=>" in line:
            places.setdefault(line.split()[0], line.split("=>")[1].strip())
    for name in LIBRARIES:
        yield Path(places.get(name, name)), f"lib/{name}"


def pack(archive):
    absent = [str(path) for path, _ in members() if not path.exists()]
    if absent:
        sys.exit(f"run: this machine has no {', '.join(absent)}; Debian's packages are {PACKAGES}")
    with tarfile.open(archive, "w:gz", dereference=True) as tar:
        for path, name in members():
            tar.add(path, name)
    size = Path(archive).stat().st_size
    print(f"{archive}: {size / 1e6:.1f} MB")
    if size > MOST_BYTES:
        sys.exit(f"run: the archive has more than {MOST_BYTES} bytes")


def unpack(archive, folder):
    with tarfile.open(archive) as tar:
        tar.extractall(folder)
