"""Unmodified PyTorch over its own NCCL, slimwire before it by the preload and by the drop-in."""
import json
from pathlib import Path

from suite import IDLE, settings

FOLDER = Path(__file__).resolve().parents[1] / "frameworks"
# Name, hook, variables.
COMPRESSED = [("preload_int8", "preload", settings("int8", min_bytes="4KiB", ops="allreduce,reducescatter,reduce")),
              ("preload_int4_ef14", "preload",
               settings("int4", "ef14", min_bytes="4KiB", ops="allreduce,reducescatter,reduce")),
              ("dropin_int8", "dropin", settings("int8", min_bytes="4KiB", ops="allreduce,reducescatter,reduce"))]
LOSS_DISTANCE = 0.05


def said(ended):
    """The last line of JSON that rank 0 printed."""
    lines = [line for line in ended.output().splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {}


def train(suite, name, what, steps, hook=None, environment=None, compressed=None):
    words = ["--emulated"] if suite.machine.emulated else []
    ended = suite.job(name, [suite.machine.python, "-B", FOLDER / "train.py", what, steps, *words], limit_s=90, hook=hook,
                      environment=environment, compressed=compressed, figures=said)
    if ended:
        suite.check(f"{name}_replicas", said(ended).get("replicas_equal") is True, "replicas are equal")
    return ended


def trainings(suite, what, steps):
    """A training natively, with an idle library, and compressed."""
    version, nccl, _ = suite.machine.torch()
    suite.results.add("gpu_machine", torch=version)
    suite.make_dropin(nccl)
    if suite.short:
        train(suite, "dropin_int8", what, steps, *COMPRESSED[2][1:], compressed=True)
        return
    native = train(suite, "native", what, steps)
    if not native:
        return
    idle = train(suite, "preload_idle", what, steps, "preload", IDLE, compressed=False)
    if idle:
        suite.check("preload_idle_bits", said(idle)["digest"] == said(native)["digest"],
                    "the library by itself changes no bit")
    digests = {}
    for name, hook, environment in COMPRESSED:
        ended = train(suite, name, what, steps, hook, environment, compressed=True)
        if ended:
            digests[name] = said(ended)["digest"]
            losses = said(ended)["loss"], said(native)["loss"]
            suite.check(f"{name}_loss", abs(losses[0] - losses[1]) <= LOSS_DISTANCE, "near the native loss",
                        loss=losses[0], native=losses[1])
    if "preload_int8" in digests and "dropin_int8" in digests:
        suite.check("hooks_agree", digests["preload_int8"] == digests["dropin_int8"],
                    "the drop-in gives the preload's bits")


def ddp(suite):
    trainings(suite, "ddp", 10 if suite.short else 50)


def fsdp2(suite):
    trainings(suite, "fsdp2", 20)


def graph(suite):
    """A step in a CUDA graph gives the bits of plain steps."""
    suite.machine.torch()
    for name, hook, environment in [("native", None, None), *COMPRESSED[:2]]:
        ended = train(suite, name, "graph", 20, hook, environment, compressed=True if hook else None)
        if ended:
            suite.check(f"{name}_bits", said(ended).get("equals_eager") is True, "the bits of plain steps")


def error(ended):
    return {"error": float(next(line.split()[1] for line in ended.output().splitlines() if line.startswith("error ")))}


def auto(suite):
    """`slimwire run` finds by itself what reaches PyTorch and a client that opens NCCL by path."""
    _, nccl, cudart = suite.machine.torch()
    train(suite, "ddp", "ddp", 10, "auto", COMPRESSED[0][2], compressed=True)
    ended = suite.job("ctypes", [suite.machine.python, "-B", FOLDER / "ctypes_rank.py", nccl, cudart], hook="auto",
                      environment=settings("int8", min_bytes="4KiB"), compressed=True, pattern="error ", figures=error)
    if ended:
        suite.check("ctypes_error", error(ended)["error"] <= 0.02, "within int8's error")


def ctypes_client(suite):
    """A client that opens NCCL by path, as inference servers do; they are pointed to the drop-in in the same way."""
    _, nccl, cudart = suite.machine.torch()
    suite.make_dropin(nccl)
    command = [suite.machine.python, "-B", FOLDER / "ctypes_rank.py"]
    if not suite.short:
        native = suite.job("native", [*command, nccl, cudart], pattern="error ", figures=error)
        if native:
            suite.check("native_exact", error(native)["error"] == 0, "NCCL is exact here")
    environment = {**settings("int8", min_bytes="4KiB"), "SLIMWIRE_REPORT": str(suite.folder("dropin") / "report.%r.%p")}
    ended = suite.job("dropin", [*command, suite.dropin(), cudart], environment=environment, compressed=True,
                      pattern="error ", figures=error)
    if ended:
        suite.check("dropin_error", error(ended)["error"] <= 0.02, "within int8's error")
