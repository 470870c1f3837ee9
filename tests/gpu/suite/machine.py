"""What the run stands on: a GPU with the real libraries, or the emulator; where programs are, and how they are built."""
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LIBRARY, DROPIN = "plugin/libslimwire.so", "plugin/dropin/libnccl.so.2"
NET_PLUGIN = "plugin/net/libnccl-net-slimwire.so"
COMMAND, AUDIT = "tools/slimwire", "plugin/libslimwire-audit.so"
# Nobody's network, one slow pair of channels: ranks share a device and take turns on it.
ONE_DEVICE = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0",
              "NCCL_NVLS_ENABLE": "0", "NCCL_NET_GDR_LEVEL": "LOC", "NCCL_RAS_ENABLE": "0",
              "CUDA_VISIBLE_DEVICES": "0"}
FEW_CHANNELS = {"NCCL_MAX_CTAS": "2", "NCCL_PROTO": "Simple", "NCCL_P2P_LL_THRESHOLD": "0"}


class Skip(Exception):
    """The machine lacks what a step needs; the text says what."""


def output_of(*command, **more):
    """What a command prints, or nothing where it fails or is not there."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, **more).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def first_line(text):
    return text.splitlines()[0].strip() if text else ""


@dataclass
class Machine:
    emulated: bool
    build: Path
    python: str = "python3"
    arch: str = ""
    nccl_include: str = ""
    nccl: str = ""
    same_host: bool = False  # probe: NCCL lets ranks of one host share a device
    environment: dict = field(default_factory=dict)  # of every job
    facts: dict = field(default_factory=dict)
    found_torch: list = None  # once looked for: importing PyTorch takes seconds

    def program(self, name):
        if name == "inner_net_plugin":
            return self.inner_net_plugin()
        if not self.emulated:
            return self.build / "tests/gpu" / ("codecs" if name == "codecs" else "collectives") / f"gpu_{name}"
        if name in ("conformance", "replay", "sparse_sum"):
            return self.build / "tests/e2e" / f"e2e_{name}"
        return self.build / "tests/gpu/collectives" / f"emulated_{name}"

    def inner_net_plugin(self):
        """A net plugin of somebody else, over TCP."""
        return self.build / ("tests/plugin/net/libnccl-net-inner11.so" if self.emulated
                             else "tests/gpu/collectives/libnccl-net-inner.so")

    def torch(self):
        """PyTorch's version, its NCCL and CUDA runtime."""
        self.found_torch = self.found_torch or self.find_torch()
        return self.found_torch

    def find_torch(self):
        if self.emulated:
            version = output_of(self.python, "-c", "import importlib.metadata as m; print(m.version('torch'))")
            if not version.startswith("1.13"):
                raise Skip(f"{self.python} has no PyTorch 1.13 (Debian: python3-torch), but '{version or 'none'}'")
            emulator = self.build / "tools/emulator"
            return [version, str(emulator / "libnccl.so.2"), str(emulator / "libcudart.so.13")]
        found = output_of(self.python, "-c", """
import torch
torch.cuda.init()
paths = sorted({line.split()[-1] for line in open("/proc/self/maps") if "/" in line})
print(torch.__version__)
for names in (("libnccl.so",), ("libcudart.so", "libcudart-")):
    print(next((path for path in paths for name in names if "/" + name in path), ""))
""").splitlines()
        if len(found) != 3 or not found[1] or not found[2]:
            raise Skip(f"{self.python} has no PyTorch with an NCCL and a CUDA runtime of its own; --python names another")
        return found


def own_environment():
    """Nobody's settings of slimwire, no preload."""
    return {name: value for name, value in os.environ.items()
            if name != "LD_PRELOAD" and (not name.startswith("SLIMWIRE_") or name == "SLIMWIRE_TEST_SEED")}


def commit():
    return os.environ.get("COMMIT") or output_of("git", "rev-parse", "--short", "HEAD", cwd=ROOT) or "unknown"


def emulated(build, python):
    machine = Machine(True, build, python or "/usr/bin/python3")  # Debian's, to which its python3-torch belongs
    machine.nccl = str(build / "tools/emulator/libnccl.so.2")
    machine.environment = {**own_environment(), "LD_LIBRARY_PATH": str(build / "tools/emulator"),
                           "SLIMWIRE_EMU_STRICT": "calls", "OMP_NUM_THREADS": "1",
                           "TEST_TORCH_SHIM": str(build / "tests/e2e/torch/libtorch_shim.so")}
    machine.facts = {"machine": "emulator", "commit": commit()}
    return machine


def with_gpu(build, python, arch):
    """arch: of kernels for another machine; else that of the device. None without either."""
    os.environ["PATH"] += ":/usr/local/cuda/bin"
    asked = lambda what: first_line(output_of("nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader"))
    own = asked("compute_cap").replace(".", "")
    if not own and not arch:
        return None
    machine = Machine(False, build, python or "python3", arch or own)
    place = output_of(str(ROOT / "tests/gpu/collectives/find_nccl.sh")).splitlines()
    machine.nccl_include, machine.nccl = place if len(place) == 2 else ("", "")
    nvcc = shutil.which("nvcc")
    paths = [str(Path(machine.nccl).parent)] if machine.nccl else []
    if nvcc:
        toolkit = Path(nvcc).resolve().parents[1]
        paths += [str(toolkit / "lib64"), str(toolkit / "lib")]
    environment = own_environment()
    if environment.get("LD_LIBRARY_PATH"):
        paths.append(environment["LD_LIBRARY_PATH"])
    machine.environment = {**environment, **ONE_DEVICE, "LD_LIBRARY_PATH": ":".join(paths)}
    release = [word for line in output_of("nvcc", "--version").splitlines() if "release" in line
               for word in line.replace(",", "").split()]
    machine.facts = {"machine": asked("name"), "driver": asked("driver_version"),
                     "nvcc": release[release.index("release") + 1] if release else "none", "commit": commit()}
    return machine


def use_pack(machine, folder):
    """What pack.py packed: headers and archives for the compiler, libraries for the loader."""
    if not folder.is_dir():
        return
    for name, path in (("CPLUS_INCLUDE_PATH", "include"), ("LIBRARY_PATH", "lib"), ("LD_LIBRARY_PATH", "lib")):
        before = machine.environment.get(name)
        machine.environment[name] = str(folder / path) + (f":{before}" if before else "")


def configure_command(machine):
    if (machine.build / "build.ninja").exists():
        return None
    if machine.emulated:
        sys.exit(f"run: {machine.build} is no build folder; tools/build --tests makes one, --build names another")
    return ["meson", "setup", str(machine.build), f"-Dgpu_archs={machine.arch}", "-Demulator=disabled",
            "-Dtests=disabled"]


def stage(machine, files, folder):
    """Copies the built files stripped, at their places, for `--no-build --build FOLDER` on another machine."""
    for file in files:
        to = folder / file.relative_to(machine.build)
        to.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["strip", "--strip-unneeded", "-o", str(to), str(file)], check=True)
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {len(files)} files, {total / 2**20:.1f} MiB")
