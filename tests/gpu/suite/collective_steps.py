"""Jobs of C++ programs under the real NCCL, all ranks on one device: results, feedback, graphs, overlap, the net plugin."""
import json
import os

from machine import NET_PLUGIN, Skip
from suite import IDLE, settings

# Each algorithm: operations of the rule, its codec, what else the program is told of it.
ALGORITHMS = {
    "two_shot": ('"allreduce", "reduce"', "int8:block=64", ""),
    "gather": ('"allreduce"', "int4:block=64", ""),
    "direct": ('"reducescatter", "allgather", "broadcast", "alltoall", "gather", "scatter", "send", "recv"',
               "fp8e4m3:block=64", ""),
    "hierarchical": ('"allreduce", "reduce", "reducescatter"', "int8:block=64", ""),
    "sparse": ('"allreduce", "reduce"', "topk:fraction=0.05", "--op allreduce,reduce"),
    "summable": ('"allreduce", "reduce"', "randomk:fraction=0.1", "--op allreduce,reduce --two-shot 0"),
}
# Shorthand codecs for every operation, beside those.
CODECS = {"bf16": "bf16", "int8": "int8:block=64", "int2": "int2:block=64",
          "int4_stochastic": "int4:block=64,rounding=stochastic"}


def probe(suite):
    """What NCCL is, and how two ranks may share the device; without that nothing else of NCCL can be shown."""
    command, machine = [suite.machine.program("probe")], suite.machine
    ended = suite.start("probe", command, 60, suite.channels, 2)
    if ended.status != 0 and not machine.emulated:
        # From 2.30 on ranks of one host may share a device when asked to; the net is then what is left.
        machine.same_host = True
        machine.environment |= {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
        ended = suite.start("probe_same_host", command, 60, suite.channels, 2)
    version = next((line for line in ended.output().splitlines() if line.startswith("nccl ")), "")
    machine.facts["nccl"] = version.removeprefix("nccl ")
    right = ended.status == 0 and "ranks 2" in ended.output()
    suite.add("probe", "passed" if right else "failed", ended.seconds, figures={
        "nccl": machine.facts["nccl"], "ranks of one host share the device": machine.same_host},
        **({} if right else {"why": f"exit status {ended.status}", "log": ended.last_lines()}))
    suite.results.add("gpu_machine", nccl=machine.facts["nccl"])


def conform(suite, name, rules, ranks=2, calls=0, **more):
    """Random calls against float64. --alike: messages are grouped in the same way on all ranks, as NCCL wants."""
    command = [suite.machine.program("conformance"), "--seed", suite.seed, "--calls",
               calls or (100 if suite.short else 300), *rules.split(), "--min-bytes", 2048, "--max-count", 60000,
               "--compressible", 80, "--alike", 1]
    # The program makes wrong calls, too: NCCL looks at addresses only when asked to.
    more["environment"] = {"NCCL_CHECK_POINTERS": "1", **more.get("environment", {})}
    return suite.job(name, command, ranks=ranks, pattern="digest ", **more)


def policy_of(suite, name, text):
    path = suite.results.folder / f"{name}.toml"
    path.write_text(f'version = 1\n[[rule]]\nname = "r"\n{text}\n')
    return {"SLIMWIRE_POLICY": str(path)}


def digest(ended):
    return [line for line in ended.output().splitlines() if line.startswith("digest")]


def conformance(suite):
    native = conform(suite, "native", "--codec native")
    for name, environment in (("default", {}), ("idle", IDLE)):  # neither changes a bit
        if suite.short and name == "default":
            continue
        ended = conform(suite, f"preload_{name}", "--codec native", hook="preload", environment=environment,
                        compressed=False)
        if native and ended:
            suite.check(f"preload_{name}_is_native", digest(native) == digest(ended),
                        "the library by itself changes no bit")
    for algorithm, (operations, codec, rules) in ALGORITHMS.items():
        if suite.short and algorithm not in ("two_shot", "direct"):
            continue
        policy = policy_of(suite, algorithm, f'match = {{ op = [{operations}] }}\ncodec = "{codec}"\n'
                                             f'algorithm = "{algorithm}"\nmin_bytes = 2048')
        often = "" if algorithm == "direct" else "--all-reduces 60"
        conform(suite, algorithm, f"--rule r --codec {codec} {rules} {often}", hook="preload", environment=policy, compressed=True,
                algorithm=algorithm)


def codecs(suite):
    for name, codec in CODECS.items():
        conform(suite, name, f"--codec {codec}", hook="preload", environment=settings(codec), compressed=True)


def four_ranks(suite):
    conform(suite, "native", "--codec native", 4, 60)
    for name, codec in (("int8", "int8:block=64"), ("int4", "int4:block=64")):
        conform(suite, name, f"--codec {codec}", 4, 60, hook="preload", environment=settings(codec), compressed=True)


def sums_of(ended):
    """What sparse_sum prints: "error HALF ALL partial P changing C"."""
    words = next((line.split() for line in ended.output().splitlines() if line.startswith("error ")), [])
    return [float(words[at]) for at in (1, 2, 4, 6)] if len(words) >= 7 else [float("nan")] * 4


def sums(suite):
    """What a codec keeps back of the same gradient comes later. The bounds are those of tests/e2e/algorithms_test.cpp."""
    all_of = lambda half, all_, partial, changing: all_ > 0 and half < 16 and all_ < 16
    cases = [  # name, codec, feedback, type, operation, elements, bound, algorithm, short
        ("topk", "topk:fraction=0.25", "ef14", "f32", "allreduce", 12000, all_of, "", True),
        ("randomk", "randomk:fraction=0.3", "", "f32", "allreduce", 12000,
         lambda half, all_, partial, changing: partial == 0 and changing > 10000, "", False),
        ("topk_without_feedback", "topk:fraction=0.25", "", "f32", "allreduce", 12000,
         lambda half, all_, partial, changing: all_ > 32, "", False),
        ("threshold", "threshold:threshold=2,fraction=0.4", "ef14", "f32", "allreduce", 12000,
         lambda half, all_, partial, changing: all_ > 0 and half < 12 and all_ < 12, "", False),
        ("aim", "threshold:fraction=0.25,refresh=5", "ef14", "f32", "allreduce", 12000, all_of, "", False),
        ("blocktopk", "blocktopk:block=64,kept=16", "ef14", "bf16", "allreduce", 12000, all_of, "", False),
        ("randomk_reducescatter", "randomk:fraction=0.3", "", "bf16", "reducescatter", 12000,
         lambda half, all_, partial, changing: partial == 0, "", False),
        ("low_rank", "powersgd:row=256", "", "f32", "allreduce", 65536, None, "low_rank", False),
    ]
    for name, codec, feedback, kind, operation, elements, bound, algorithm, short in cases:
        if suite.short and not short:
            continue
        ended = suite.job(name, [suite.machine.program("sparse_sum"), 64, kind, operation, elements], hook="preload",
                          environment=settings(codec, feedback), compressed=True, algorithm=algorithm, pattern="error ")
        if ended and bound:
            half, all_, partial, changing = sums_of(ended)
            suite.check(f"{name}_in_bound", bound(half, all_, partial, changing), "within its bound", half=half,
                        all=all_, partial=partial, changing=changing)
    averaged(suite, "averaged_as_it_is", "")
    if not suite.short:
        averaged(suite, "averaged_by_int8", 'average_codec = "int8"')


def averaged(suite, name, more):
    """Residuals averaged as they are and by a codec; the same bound, and every call counts."""
    policy = policy_of(suite, name, 'match = { op = "allreduce", bytes = "2KiB.." }\ncodec = "topk:fraction=0.25"\n'
                                    f'error_feedback = "ef14"\naverage_every = 3\n{more}')
    ended = suite.job(name, [suite.machine.program("sparse_sum"), 64, "f32", "allreduce", 12000, "marked"],
                      hook="preload", environment=policy, compressed=True, pattern="error ")
    if ended:
        half, all_, _, _ = sums_of(ended)
        times = max((key.get("averagings", 0) for key in ended.records("key")), default=0)
        suite.check(f"{name}_in_bound", all_ > 0 and half < 16 and all_ < 16 and times >= 20, "averaged in time, in bound",
                    half=half, all=all_, averagings=times)


def replay(suite):
    """Captured and replayed, all bits are those of plain calls."""
    cases = [("int4_stochastic", "int4:rounding=stochastic", "ef14"), ("topk", "topk:fraction=0.05", "ef14")]
    if not suite.short:
        cases += [("native", "", ""), ("bf16", "bf16:rounding=stochastic", ""), ("int8", "int8", ""),
                  ("int2_rotated", "int2:rotate=64", ""), ("fp8e4m3", "fp8e4m3", "ef14"),
                  ("threshold", "threshold:threshold=4,fraction=0.2", "ef14"),
                  ("aim", "threshold:fraction=0.05,refresh=3", "ef14"), ("randomk", "randomk:fraction=0.1", "ef14")]
    for name, codec, feedback in cases[:1] if suite.short else cases:
        suite.job(name, [suite.machine.program("replay"), 20, 4097, "shared"], pattern="replayed 20",
                  hook="preload" if codec else None, environment=settings(codec, feedback) if codec else {},
                  compressed=True if codec else None)


def json_line(ended):
    line = next((line for line in ended.output().splitlines() if line.startswith("{")), "{}")
    return json.loads(line)


def overlap(suite):
    """A backward pass's products beside all-reduces, NCCL's own number of channels; bar: 1.02 of native's time."""
    suite.channels = {}
    shape = (3, 64, 4, 65536) if suite.machine.emulated else (9, 2048, 8, 2097152)
    # The emulated product is the host's.
    environment = settings("int8:block=64") | ({"SLIMWIRE_EMU_STRICT": "0"} if suite.machine.emulated else {})
    ended = suite.job("overlap", [suite.machine.program("overlap"), *shape], limit_s=90, hook="preload",
                      environment=environment, compressed=True, pattern='{"side"', figures=json_line)
    if ended and not suite.machine.emulated:  # times of an emulator bound nothing
        slower = json_line(ended)["against_native"]
        suite.check("within_2_percent", slower <= 1.02, "at most 1.02 of native's time", against_native=slower)


def creation(suite):
    """Creations by turns natively and with a codec; device memory of each state of a communicator."""
    rounds, mib = (2, 1) if suite.short else (11, 64)
    suite.job("creation", [suite.machine.program("creation"), rounds, mib], limit_s=60, hook="preload",
              environment=settings("int8", "ef14"), compressed=True, pattern='{"rounds"', figures=json_line)


def net(suite):
    """The net plugin carries a native job's bytes: exact, and its records say what crossed."""
    def carried(ended):
        peers = list(ended.records("net_peer"))
        return {"bytes": sum(one.get("bytes", 0) for one in peers),
                "wire_bytes": sum(one.get("wire_bytes", 0) for one in peers),
                "coded_messages": sum(one.get("coded_messages", 0) for one in peers)}
    folder = suite.machine.build / NET_PLUGIN
    for name, more in (("over_tcp_plugin", {"SLIMWIRE_NET_INNER": str(suite.machine.inner_net_plugin())}),
                       ("over_ucx", {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo", "UCX_MEM_EVENTS": "n"})):
        if suite.short and name == "over_ucx":
            continue
        environment = {
            "LD_LIBRARY_PATH": f"{folder.parent}:{suite.machine.environment['LD_LIBRARY_PATH']}",
            "NCCL_NET_PLUGIN": "slimwire", "NCCL_NET": "slimwire", "SLIMWIRE_NET_CODEC": "palette,checksum",
            "SLIMWIRE_REPORT": str(suite.folder(name) / "report.%r.%p"), **more}
        ended = conform(suite, name, "--codec native", environment=environment, figures=carried)
        if ended:
            suite.check(f"{name}_carried", carried(ended)["bytes"] > 0, "messages went through the plugin")


def nccl_tests(suite):
    """NVIDIA's programs where their folder is named. One process a rank wants MPI; without it one rank, or on the
    emulator two devices of one process. A communicator of one rank sends nothing, so nothing of it is compressed."""
    if suite.nccl_tests is None:
        raise Skip("--nccl-tests names no folder of theirs")
    devices = 2 if suite.machine.emulated else 1
    for program in ("all_reduce_perf", "reduce_scatter_perf", "all_gather_perf"):
        path = suite.nccl_tests / program
        if not os.access(path, os.X_OK):
            suite.add(program, "failed", 0, why=f"{suite.nccl_tests} lacks it")
            continue
        for name, check, more in (("native", 1, {}), ("default", 1, {"hook": "preload", "compressed": False}),
                                  ("lossy", 0, {"hook": "preload", "compressed": True})):
            if name == "lossy" and devices == 1:
                continue
            environment = {"SLIMWIRE_EMU_DEVICES": str(devices), **(settings("int8:block=64") if name == "lossy" else {})}
            suite.job(f"{program}_{name}", [path, "-g", devices, "-b", "4K", "-e", "1M", "-f", 16, "-n", 3, "-w", 1,
                                            "-c", check], ranks=1, limit_s=60, environment=environment,
                      pattern="Out of bounds values : 0 OK", **more)
