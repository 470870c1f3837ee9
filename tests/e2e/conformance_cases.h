// The jobs of the conformance test: what stands below the program (a codec for everything, or a
// policy), and what the program is told of it (conformance/rules.h). Short: together about a
// minute; tests/e2e/soak runs them again and again with other seeds. A new case is a row here and a
// word in meson.build.
#pragma once

#include <span>

#include "tests/e2e/conformance_series.h"

namespace slimwire::test {

struct Case {
    const char* name;
    int calls;
    int ranks = 1;
    int threads = 0;              // devices of one process instead of ranks, a thread each
    int devices = 0;              // the same with one thread for all
    const char* codec = "";       // SLIMWIRE_CODEC
    const char* mode = "";        // SLIMWIRE_MODE
    const char* policy = "";      // a file's content instead
    const char* rules = "";       // arguments of the program
    const char* algorithms = "";  // that the first seed must use
    int slice_bytes = 0;
    const char* nodes = "";
    const char* connections = "";                   // CUDA_DEVICE_MAX_CONNECTIONS
    const char* seed = "";                          // instead of SLIMWIRE_TEST_SEED
    int series = 0;                                 // of calls on the same tensors
    std::span<const SeriesRule> series_rules = {};  // their policy and rules
    int own_ways = 0;                               // --own-ways
};

inline constexpr const char* kMinBytes = "2048";

// By size, type and operation, each with an algorithm of its own.
inline constexpr const char* kBySize = R"(version = 1
[[rule]]
name = "middling"
match = { op = ["allreduce", "reduce"], bytes = "4KiB..64KiB" }
codec = "bf16"
[[rule]]
name = "large"
match = { op = "allreduce", dtype = "f32", bytes = "64KiB.." }
codec = "int8:block=64"
algorithm = "gather"
[[rule]]
name = "owed"
match = { op = ["allreduce", "reducescatter", "reduce"], dtype = ["f16", "bf16"] }
codec = "int8:block=64"
error_feedback = "ef14"
residual = "int8"
min_bytes = 8192
start_step = 1
[[rule]]
name = "state"
match = { op = ["allgather", "broadcast", "gather", "scatter"] }
codec = "native"
[[rule]]
name = "messages"
match = { op = ["send", "recv", "alltoall"], dtype = ["f32", "bf16"], bytes = "2KiB.." }
codec = "int4:block=32"
algorithm = "direct"
)";
inline constexpr const char* kBySizeRules =
    "--rule middling --op allreduce,reduce --from 4096 --until 65536 --codec bf16 "
    "--rule large --op allreduce --dtype f32 --from 65536 --codec int8 --block 64 "
    "--rule owed --op allreduce,reducescatter,reduce --dtype f16,bf16 --codec int8 --block 64 "
    "--feedback 1 --min-bytes 8192 "
    "--rule messages --op sendrecv,alltoall --dtype f32,bf16 --codec int4 --block 32 "
    "--min-bytes 2048";

// Two nodes of two ranks.
inline constexpr const char* kByNode = R"(version = 1
[[rule]]
name = "between_nodes"
match = { op = "allreduce", bytes = "4KiB..", scope = "inter_node" }
codec = "int8:block=64"
algorithm = "hierarchical"
[[rule]]
name = "owed"
match = { op = "reducescatter", bytes = "4KiB.." }
codec = "int4:block=64"
error_feedback = "ema"
[[rule]]
name = "rest"
match = { op = ["reduce", "alltoall", "send", "recv"] }
codec = "fp8e4m3:block=64"
min_bytes = 4096
)";
inline constexpr const char* kByNodeRules =
    "--rule nodes --op allreduce --codec int8 --block 64 --min-bytes 4096 "
    "--rule owed --op reducescatter --codec int4 --block 64 --feedback 1 --min-bytes 4096 "
    "--rule rest --op reduce,alltoall,sendrecv --codec fp8e4m3 --block 64 --min-bytes 4096";

// A sparsifier for every algorithm that takes one.
inline constexpr const char* kSparsifiers = R"(version = 1
[[rule]]
name = "gathered"
match = { op = "allreduce", dtype = "f32" }
codec = "topk:fraction=0.05"
algorithm = "gather"
min_bytes = 2048
[[rule]]
name = "summed"
match = { op = ["allreduce", "reduce"] }
codec = "randomk:fraction=0.1"
algorithm = "summable"
min_bytes = 2048
[[rule]]
name = "scattered"
match = { op = "reducescatter" }
codec = "blocktopk:block=64,kept=4,values=int8"
min_bytes = 2048
[[rule]]
name = "moved"
codec = "threshold:threshold=1.5,fraction=0.2"
min_bytes = 2048
)";
inline constexpr const char* kSparsifiersRules =
    "--rule gathered --op allreduce --dtype f32 --codec topk --fraction 0.05 --two-shot 0 "
    "--min-bytes 2048 --slice-bytes 32768 "
    "--rule summed --op allreduce,reduce --codec randomk --fraction 0.1 --two-shot 0 "
    "--min-bytes 2048 --slice-bytes 32768 "
    "--rule scattered --op reducescatter --codec blocktopk_int8 --group 64 --kept 4 "
    "--min-bytes 2048 --slice-bytes 32768 "
    "--rule moved --codec threshold --threshold 1.5 --fraction 0.2 "
    "--min-bytes 2048 --slice-bytes 32768";

inline constexpr Case kCases[] = {
    {.name = "native", .calls = 3000, .ranks = 3},
    {.name = "int8",
     .calls = 1500,
     .ranks = 4,
     .codec = "int8:block=64",
     .rules = "--codec int8 --block 64 --min-bytes 2048"},
    // A group of native and compressed messages in which a kernel's first launch waited for the
    // peer, seen on an H200.
    {.name = "first_launches",
     .calls = 100,
     .ranks = 2,
     .codec = "int8:block=64",
     .rules = "--codec int8 --block 64 --min-bytes 2048 --max-count 60000 --compressible 80",
     .seed = "357767517"},
    {.name = "int4",
     .calls = 2500,
     .ranks = 3,
     .codec = "int4:block=32",
     .rules = "--codec int4 --block 32 --min-bytes 2048"},
    {.name = "int4_sliced",
     .calls = 700,
     .ranks = 2,
     .codec = "int4:block=64",
     .rules = "--codec int4 --block 64 --min-bytes 2048",
     .slice_bytes = 65536},
    {.name = "int8_many_slices",
     .calls = 300,
     .ranks = 3,
     .codec = "int8:block=64",
     .rules = "--codec int8 --block 64 --min-bytes 2048",
     .slice_bytes = 4096},
    // One hardware queue for all streams of a device, as Megatron sets. All ranks group alike: a
    // group puts its native calls before those that are compressed.
    {.name = "one_connection",
     .calls = 300,
     .ranks = 3,
     .codec = "int4:block=32",
     .rules = "--codec int4 --block 32 --min-bytes 2048 --alike 1",
     .connections = "1"},
    {.name = "one_connection_native", .calls = 200, .ranks = 3, .connections = "1"},
    {.name = "int2",
     .calls = 500,
     .ranks = 2,
     .codec = "int2:block=64",
     .rules = "--codec int2 --block 64 --min-bytes 2048"},
    {.name = "int4_stochastic",
     .calls = 400,
     .ranks = 3,
     .codec = "int4:block=64,rounding=stochastic",
     .rules = "--codec int4_stochastic --block 64 --min-bytes 2048"},
    {.name = "int8_rotated",
     .calls = 400,
     .ranks = 3,
     .codec = "int8:block=64,rotate=64",
     .rules = "--codec int8_rotated --block 64 --min-bytes 2048"},
    {.name = "fp8e4m3",
     .calls = 400,
     .ranks = 2,
     .codec = "fp8e4m3:block=64",
     .rules = "--codec fp8e4m3 --block 64 --min-bytes 2048"},
    {.name = "bf16",
     .calls = 1500,
     .ranks = 2,
     .codec = "bf16",
     .rules = "--codec bf16 --min-bytes 2048"},
    {.name = "threads",
     .calls = 1200,
     .threads = 3,
     .codec = "int4:block=64",
     .rules = "--codec int4 --block 64 --min-bytes 2048"},
    {.name = "record", .calls = 500, .ranks = 3, .mode = "record"},
    {.name = "record_threads", .calls = 120, .threads = 4, .mode = "record"},
    {.name = "record_devices", .calls = 100, .devices = 4, .mode = "record"},
    {.name = "shadow", .calls = 400, .ranks = 3, .codec = "int4", .mode = "shadow"},
    {.name = "shadow_threads", .calls = 120, .threads = 4, .codec = "int8", .mode = "shadow"},
    {.name = "shadow_devices", .calls = 100, .devices = 4, .codec = "int4", .mode = "shadow"},
    {.name = "threads_native", .calls = 600, .threads = 4},
    {.name = "devices",
     .calls = 400,
     .devices = 3,
     .codec = "int8:block=64",
     .rules = "--codec int8 --block 64 --min-bytes 2048",
     .slice_bytes = 32768},
    {.name = "devices_native", .calls = 400, .devices = 4},
    {.name = "topk",
     .calls = 400,
     .ranks = 3,
     .codec = "topk:fraction=0.05",
     .rules = "--codec topk --fraction 0.05 --min-bytes 2048",
     .algorithms = "sparse direct"},
    {.name = "topk_sliced",
     .calls = 300,
     .ranks = 3,
     .codec = "topk:fraction=0.03,values=int8",
     .rules = "--codec topk_int8 --fraction 0.03 --min-bytes 2048 --slice-bytes 16384",
     .algorithms = "sparse direct",
     .slice_bytes = 16384},
    {.name = "threshold",
     .calls = 300,
     .ranks = 3,
     .codec = "threshold:threshold=3,fraction=0.1",
     .rules = "--codec threshold --threshold 3 --fraction 0.1 --min-bytes 2048",
     .algorithms = "sparse direct"},
    {.name = "blocktopk",
     .calls = 300,
     .ranks = 3,
     .codec = "blocktopk:block=128,kept=6",
     .rules = "--codec blocktopk --group 128 --kept 6 --min-bytes 2048",
     .algorithms = "two_shot direct"},
    {.name = "rowtopk",
     .calls = 300,
     .ranks = 2,
     .codec = "rowtopk:row=512,kept=16",
     .rules = "--codec rowtopk --group 512 --kept 16 --min-bytes 2048 --slice-bytes 65536",
     .algorithms = "two_shot direct",
     .slice_bytes = 65536},
    {.name = "randomk",
     .calls = 300,
     .ranks = 3,
     .codec = "randomk:fraction=0.1",
     .rules = "--codec randomk --fraction 0.1 --min-bytes 2048",
     .algorithms = "two_shot direct"},
    {.name = "policy_sizes",
     .calls = 500,
     .ranks = 3,
     .policy = kBySize,
     .rules = kBySizeRules,
     .algorithms = "two_shot gather direct"},
    {.name = "own_ways_native", .calls = 250, .ranks = 3, .own_ways = 1},
    {.name = "own_ways",
     .calls = 300,
     .ranks = 3,
     .policy = kBySize,
     .rules = kBySizeRules,
     .algorithms = "two_shot gather direct",
     .slice_bytes = 16384,
     .own_ways = 1},
    {.name = "policy_nodes",
     .calls = 400,
     .ranks = 4,
     .policy = kByNode,
     .rules = kByNodeRules,
     .algorithms = "hierarchical two_shot direct",
     .slice_bytes = 65536,
     .nodes = "2x2"},
    {.name = "policy_sparsifiers",
     .calls = 400,
     .ranks = 3,
     .policy = kSparsifiers,
     .rules = kSparsifiersRules,
     .algorithms = "gather summable direct",
     .slice_bytes = 32768},
    {.name = "series_largest",
     .calls = 100,
     .ranks = 3,
     .algorithms = "sparse gather direct",
     .series = 25,
     .series_rules = kSeriesLargest},
    {.name = "series_threshold",
     .calls = 100,
     .ranks = 2,
     .algorithms = "sparse gather direct",
     .slice_bytes = 32768,
     .series = 25,
     .series_rules = kSeriesThreshold},
    {.name = "series_groups",
     .calls = 100,
     .threads = 3,
     .algorithms = "two_shot direct",
     .series = 25,
     .series_rules = kSeriesGroups},
    {.name = "series_runs",
     .calls = 100,
     .devices = 3,
     .algorithms = "two_shot gather summable direct",
     .slice_bytes = 65536,
     .series = 25,
     .series_rules = kSeriesRuns},
    {.name = "series_nodes",
     .calls = 100,
     .ranks = 4,
     .algorithms = "hierarchical direct",
     .nodes = "2x2",
     .series = 25,
     .series_rules = kSeriesNodes},
    {.name = "series_uneven_nodes",
     .calls = 100,
     .ranks = 3,
     .algorithms = "hierarchical direct",
     .slice_bytes = 65536,
     .nodes = "2x2",
     .series = 25,
     .series_rules = kSeriesUnevenNodes},
};

}  // namespace slimwire::test
