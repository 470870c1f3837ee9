// The jobs of the conformance test: what stands below the program (a codec for everything, or a
// policy). Short: together about a minute; tests/e2e/soak runs them again and again with other
// seeds. A new case is a row here and a word in meson.build.
#pragma once

#include <span>

#include "tests/e2e/conformance_rules.h"

namespace slimwire::test {

struct Case {
    const char* name;
    int calls;
    int ranks = 1;
    int threads = 0;         // devices of one process instead of ranks, a thread each
    int devices = 0;         // the same with one thread for all
    const char* codec = "";  // SLIMWIRE_CODEC
    const char* mode = "";   // SLIMWIRE_MODE
    std::span<const ConformanceRule> rules = {};  // a policy instead
    int series = 0;               // of calls on the same tensors; the rules are theirs
    const char* more = "";        // arguments of the program
    const char* algorithms = "";  // that the first seed must use
    int slice_bytes = 0;
    const char* nodes = "";
    const char* connections = "";  // CUDA_DEVICE_MAX_CONNECTIONS
    const char* seed = "";         // instead of SLIMWIRE_TEST_SEED
    int own_ways = 0;              // --own-ways
};

inline constexpr const char* kMinBytes = "2048";

inline constexpr Case kCases[] = {
    {.name = "native", .calls = 3000, .ranks = 3},
    {.name = "int8", .calls = 1500, .ranks = 4, .codec = "int8:block=64"},
    // A group of native and compressed messages in which a kernel's first launch waited for the
    // peer, seen on an H200.
    {.name = "first_launches",
     .calls = 100,
     .ranks = 2,
     .codec = "int8:block=64",
     .more = "--max-count 60000 --compressible 80",
     .seed = "357767517"},
    {.name = "int4", .calls = 2500, .ranks = 3, .codec = "int4:block=32"},
    {.name = "int4_sliced",
     .calls = 700,
     .ranks = 2,
     .codec = "int4:block=64",
     .slice_bytes = 65536},
    {.name = "int8_many_slices",
     .calls = 300,
     .ranks = 3,
     .codec = "int8:block=64",
     .slice_bytes = 4096},
    // One hardware queue for all streams of a device, as Megatron sets. All ranks group alike: a
    // group puts its native calls before those that are compressed.
    {.name = "one_connection",
     .calls = 300,
     .ranks = 3,
     .codec = "int4:block=32",
     .more = "--alike 1",
     .connections = "1"},
    {.name = "one_connection_native", .calls = 200, .ranks = 3, .connections = "1"},
    {.name = "int2", .calls = 500, .ranks = 2, .codec = "int2:block=64"},
    {.name = "int4_stochastic",
     .calls = 400,
     .ranks = 3,
     .codec = "int4:block=64,rounding=stochastic"},
    {.name = "int8_rotated", .calls = 400, .ranks = 3, .codec = "int8:block=64,rotate=64"},
    {.name = "fp8e4m3", .calls = 400, .ranks = 2, .codec = "fp8e4m3:block=64"},
    {.name = "bf16", .calls = 1500, .ranks = 2, .codec = "bf16"},
    {.name = "threads", .calls = 1200, .threads = 3, .codec = "int4:block=64"},
    {.name = "record", .calls = 500, .ranks = 3, .mode = "record"},
    {.name = "record_threads", .calls = 120, .threads = 4, .mode = "record"},
    {.name = "record_devices", .calls = 100, .devices = 4, .mode = "record"},
    {.name = "shadow", .calls = 400, .ranks = 3, .codec = "int4", .mode = "shadow"},
    {.name = "shadow_threads", .calls = 120, .threads = 4, .codec = "int8", .mode = "shadow"},
    {.name = "shadow_devices", .calls = 100, .devices = 4, .codec = "int4", .mode = "shadow"},
    {.name = "threads_native", .calls = 600, .threads = 4},
    {.name = "devices", .calls = 400, .devices = 3, .codec = "int8:block=64", .slice_bytes = 32768},
    {.name = "devices_native", .calls = 400, .devices = 4},
    {.name = "topk",
     .calls = 400,
     .ranks = 3,
     .codec = "topk:fraction=0.05",
     .algorithms = "sparse direct"},
    {.name = "topk_sliced",
     .calls = 300,
     .ranks = 3,
     .codec = "topk:fraction=0.03,values=int8",
     .algorithms = "sparse direct",
     .slice_bytes = 16384},
    {.name = "threshold",
     .calls = 300,
     .ranks = 3,
     .codec = "threshold:threshold=3,fraction=0.1",
     .algorithms = "sparse direct"},
    {.name = "blocktopk",
     .calls = 300,
     .ranks = 3,
     .codec = "blocktopk:block=128,kept=6",
     .algorithms = "two_shot direct"},
    {.name = "rowtopk",
     .calls = 300,
     .ranks = 2,
     .codec = "rowtopk:row=512,kept=16",
     .algorithms = "two_shot direct",
     .slice_bytes = 65536},
    {.name = "randomk",
     .calls = 300,
     .ranks = 3,
     .codec = "randomk:fraction=0.1",
     .algorithms = "two_shot direct"},
    {.name = "policy_sizes",
     .calls = 500,
     .ranks = 3,
     .rules = kBySize,
     .algorithms = "two_shot gather direct"},
    {.name = "own_ways_native", .calls = 250, .ranks = 3, .own_ways = 1},
    {.name = "own_ways",
     .calls = 300,
     .ranks = 3,
     .rules = kBySize,
     .algorithms = "two_shot gather direct",
     .slice_bytes = 16384,
     .own_ways = 1},
    {.name = "policy_nodes",
     .calls = 400,
     .ranks = 4,
     .rules = kByNode,
     .algorithms = "hierarchical two_shot direct",
     .slice_bytes = 65536,
     .nodes = "2x2"},
    {.name = "policy_sparsifiers",
     .calls = 400,
     .ranks = 3,
     .rules = kSparsifiers,
     .algorithms = "gather summable direct",
     .slice_bytes = 32768},
    {.name = "series_largest",
     .calls = 100,
     .ranks = 3,
     .rules = kSeriesLargest,
     .series = 25,
     .algorithms = "sparse gather direct"},
    {.name = "series_threshold",
     .calls = 100,
     .ranks = 2,
     .rules = kSeriesThreshold,
     .series = 25,
     .algorithms = "sparse gather direct",
     .slice_bytes = 32768},
    {.name = "series_groups",
     .calls = 100,
     .threads = 3,
     .rules = kSeriesGroups,
     .series = 25,
     .algorithms = "two_shot direct"},
    {.name = "series_runs",
     .calls = 100,
     .devices = 3,
     .rules = kSeriesRuns,
     .series = 25,
     .algorithms = "two_shot gather summable direct",
     .slice_bytes = 65536},
    {.name = "series_nodes",
     .calls = 100,
     .ranks = 4,
     .rules = kSeriesNodes,
     .series = 25,
     .algorithms = "hierarchical direct",
     .nodes = "2x2"},
    {.name = "series_uneven_nodes",
     .calls = 100,
     .ranks = 3,
     .rules = kSeriesUnevenNodes,
     .series = 25,
     .algorithms = "hierarchical direct",
     .slice_bytes = 65536,
     .nodes = "2x2"},
};

}  // namespace slimwire::test
