"""The steps, in order of worth: those of the first eight minutes first. A new one is a row here."""
import codec_steps as codec
import collective_steps as collective
import framework_steps as framework
from machine import AUDIT, COMMAND, DROPIN, LIBRARY, NET_PLUGIN
from suite import Step

STEPS = [
    Step("probe", 90, collective.probe, "NCCL, and two ranks on one device", ("probe",)),
    Step("kernels", 95, codec.kernels, "kernels against host bodies, bit for bit", ("codecs",), emulated=False),
    Step("speed", 65, codec.speed, "hot kernels against a device copy", ("codecs",), emulated=False),
    Step("conformance", 110, collective.conformance, "every algorithm against float64", ("conformance", LIBRARY)),
    Step("replay", 60, collective.replay, "capture and replay", ("replay", LIBRARY)),
    Step("ddp", 120, framework.ddp, "PyTorch DDP, loss beside native", (LIBRARY, DROPIN)),
    Step("auto", 60, framework.auto, "slimwire run picks its way in", (COMMAND, LIBRARY, AUDIT, DROPIN)),
    Step("overlap", 60, collective.overlap, "matrix products beside all-reduces", ("overlap", LIBRARY)),
    Step("fsdp2", 90, framework.fsdp2, "PyTorch FSDP2", (LIBRARY, DROPIN), emulated=False),
    Step("creation", 60, collective.creation, "creation time and memory", ("creation", LIBRARY)),
    Step("sums", 90, collective.sums, "what sparsifiers keep back comes later", ("sparse_sum", LIBRARY)),
    Step("net", 60, collective.net, "the net plugin under NCCL", ("conformance", NET_PLUGIN, "inner_net_plugin")),
    Step("graph", 60, framework.graph, "a PyTorch step in a CUDA graph", (LIBRARY,), emulated=False),
    Step("ctypes", 40, framework.ctypes_client, "a client that opens NCCL by path", (DROPIN,)),
    Step("nccl-tests", 120, collective.nccl_tests, "NVIDIA's nccl-tests", (LIBRARY,)),
    Step("codecs", 60, collective.codecs, "other codecs for every operation", ("conformance", LIBRARY), short=False),
    Step("four", 60, collective.four_ranks, "four ranks", ("conformance", LIBRARY), short=False),
    Step("memcheck", 70, codec.sanitize("memcheck"), "kernels under memcheck", ("codecs",), emulated=False),
    Step("racecheck", 70, codec.sanitize("racecheck"), "kernels under racecheck", ("codecs",), emulated=False),
    Step("kernels-long", 270, codec.kernels_long, "10^9 values a codec", ("codecs",), emulated=False),
    Step("speed-all", 160, codec.speed_all, "every codec's speed", ("codecs",), emulated=False),
]
