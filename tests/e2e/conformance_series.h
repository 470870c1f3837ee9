// Policies for series (conformance/series.h): sparsifiers with error feedback for the series'
// messages, 64 KiB and more, by every algorithm that takes them; a codec of blocks for the others,
// which are smaller (--max-count 8000). Lossy all-gathers and broadcasts only where a rule names
// them.
#pragma once

namespace slimwire::test {

inline constexpr const char* kSeriesLargest = R"(version = 1
[[rule]]
name = "gathered"
match = { op = "allreduce", dtype = "f16", bytes = "64KiB.." }
codec = "topk:fraction=0.4"
algorithm = "gather"
error_feedback = "ef14"
[[rule]]
name = "coded"
match = { op = ["allreduce", "reducescatter", "reduce", "allgather", "broadcast", "alltoall",
    "gather", "scatter", "send", "recv"], dtype = "bf16", bytes = "64KiB.." }
codec = "topk:fraction=0.5,values=int8"
error_feedback = "ef14"
start_step = 1
[[rule]]
name = "rest"
match = { op = ["allreduce", "reducescatter", "reduce", "allgather", "broadcast", "alltoall",
    "gather", "scatter", "send", "recv"], bytes = "64KiB.." }
codec = "topk:fraction=0.4"
error_feedback = "ef14"
[[rule]]
name = "small"
codec = "int8:block=64"
min_bytes = 2048
)";
inline constexpr const char* kSeriesLargestRules =
    "--rule gathered --op allreduce --dtype f16 --from 65536 --codec topk --fraction 0.4 "
    "--two-shot 0 --feedback 1 "
    "--rule coded --dtype bf16 --from 65536 --codec topk_int8 --fraction 0.5 --feedback 1 "
    "--rule rest --from 65536 --codec topk --fraction 0.4 --feedback 1 "
    "--rule small --codec int8 --block 64 --min-bytes 2048";

inline constexpr const char* kSeriesThreshold = R"(version = 1
[[rule]]
name = "gathered"
match = { op = "allreduce", dtype = "f32", bytes = "64KiB.." }
codec = "threshold:threshold=0.005,fraction=0.4"
algorithm = "gather"
error_feedback = "ef14"
[[rule]]
name = "coded"
match = { op = ["allreduce", "reducescatter", "reduce", "allgather", "broadcast", "alltoall",
    "gather", "scatter", "send", "recv"], dtype = "f16", bytes = "64KiB.." }
codec = "threshold:threshold=0.01,fraction=0.5,values=int8"
error_feedback = "ef14"
[[rule]]
name = "rest"
match = { op = ["allreduce", "reducescatter", "reduce", "allgather", "broadcast", "alltoall",
    "gather", "scatter", "send", "recv"], bytes = "64KiB.." }
codec = "threshold:threshold=0.005,fraction=0.4"
error_feedback = "ef14"
start_step = 2
[[rule]]
name = "small"
codec = "int8:block=64"
min_bytes = 2048
)";
inline constexpr const char* kSeriesThresholdRules =
    "--rule gathered --op allreduce --dtype f32 --from 65536 --codec threshold --threshold 0.005 "
    "--fraction 0.4 --two-shot 0 --feedback 1 --slice-bytes 32768 "
    "--rule coded --dtype f16 --from 65536 --codec threshold_int8 --threshold 0.01 --fraction 0.5 "
    "--feedback 1 --slice-bytes 32768 "
    "--rule rest --from 65536 --codec threshold --threshold 0.005 --fraction 0.4 --feedback 1 "
    "--slice-bytes 32768 "
    "--rule small --codec int8 --block 64 --min-bytes 2048";

inline constexpr const char* kSeriesGroups = R"(version = 1
[[rule]]
name = "coded"
match = { op = ["allreduce", "reducescatter", "reduce", "allgather", "broadcast", "alltoall",
    "gather", "scatter", "send", "recv"], dtype = ["f16", "bf16"], bytes = "64KiB.." }
codec = "blocktopk:block=64,kept=24,values=int8"
error_feedback = "ef14"
[[rule]]
name = "rows"
match = { op = ["allreduce", "reduce", "allgather", "alltoall", "send", "recv"], bytes = "64KiB.." }
codec = "rowtopk:row=512,kept=171"
error_feedback = "ef14"
[[rule]]
name = "rest"
match = { op = ["allreduce", "reducescatter", "reduce", "allgather", "broadcast", "alltoall",
    "gather", "scatter", "send", "recv"], bytes = "64KiB.." }
codec = "blocktopk:block=64,kept=24"
error_feedback = "ef14"
[[rule]]
name = "small"
codec = "int8:block=64"
min_bytes = 2048
)";
inline constexpr const char* kSeriesGroupsRules =
    "--rule coded --dtype f16,bf16 --from 65536 --codec blocktopk_int8 --group 64 --kept 24 "
    "--feedback 1 "
    "--rule rows --op allreduce,reduce,allgather,alltoall,sendrecv --from 65536 --codec rowtopk "
    "--group 512 --kept 171 --feedback 1 "
    "--rule rest --from 65536 --codec blocktopk --group 64 --kept 24 --feedback 1 "
    "--rule small --codec int8 --block 64 --min-bytes 2048";

inline constexpr const char* kSeriesRuns = R"(version = 1
[[rule]]
name = "gathered"
match = { op = "allreduce", dtype = "bf16", bytes = "64KiB.." }
codec = "randomk:fraction=0.5"
algorithm = "gather"
error_feedback = "ef14"
[[rule]]
name = "summed"
match = { op = ["allreduce", "reducescatter", "reduce"], dtype = "f32", bytes = "64KiB.." }
codec = "randomk:fraction=0.5"
algorithm = "summable"
error_feedback = "ef14"
[[rule]]
name = "rest"
match = { op = ["allreduce", "reducescatter", "reduce", "allgather", "broadcast", "alltoall",
    "gather", "scatter", "send", "recv"], bytes = "64KiB.." }
codec = "randomk:fraction=0.5"
error_feedback = "ef14"
[[rule]]
name = "small"
codec = "int8:block=64"
min_bytes = 2048
)";
inline constexpr const char* kSeriesRunsRules =
    "--rule gathered --op allreduce --dtype bf16 --from 65536 --codec randomk --fraction 0.5 "
    "--two-shot 0 --feedback 1 --slice-bytes 65536 "
    "--rule summed --op allreduce,reducescatter,reduce --dtype f32 --from 65536 --codec randomk "
    "--fraction 0.5 --two-shot 0 --feedback 1 --slice-bytes 65536 "
    "--rule rest --from 65536 --codec randomk --fraction 0.5 --feedback 1 --slice-bytes 65536 "
    "--rule small --codec int8 --block 64 --min-bytes 2048";

// Nodes of several ranks, with sparsifiers between them, inside them, and both.
inline constexpr const char* kSeriesNodes = R"(version = 1
[[rule]]
name = "both"
match = { op = ["allreduce", "reduce", "reducescatter"], dtype = "f32", bytes = "64KiB.." }
codec = "topk:fraction=0.4"
intra_codec = "blocktopk:block=64,kept=24"
algorithm = "hierarchical"
error_feedback = "ef14"
[[rule]]
name = "coded_inside"
match = { op = ["allreduce", "reduce", "reducescatter"], dtype = "bf16", bytes = "64KiB.." }
codec = "threshold:threshold=0.005,fraction=0.4"
intra_codec = "int8:block=64"
algorithm = "hierarchical"
error_feedback = "ef14"
[[rule]]
name = "between"
match = { op = ["allreduce", "reduce", "reducescatter"], bytes = "64KiB.." }
codec = "blocktopk:block=64,kept=24"
algorithm = "hierarchical"
error_feedback = "ef14"
[[rule]]
name = "rest"
match = { op = ["allreduce", "reducescatter", "reduce", "allgather", "broadcast", "alltoall",
    "gather", "scatter", "send", "recv"], bytes = "64KiB.." }
codec = "rowtopk:row=512,kept=171"
error_feedback = "ef14"
[[rule]]
name = "small"
codec = "int8:block=64"
min_bytes = 2048
)";
inline constexpr const char* kSeriesNodesRules =
    "--rule both --op allreduce,reduce,reducescatter --dtype f32 --from 65536 --codec topk "
    "--fraction 0.4 --intra blocktopk --intra-fraction 0.375 --nodes 1 --feedback 1 "
    "--rule coded_inside --op allreduce,reduce,reducescatter --dtype bf16 --from 65536 "
    "--codec threshold --threshold 0.005 --fraction 0.4 --intra int8 --nodes 1 --feedback 1 "
    "--rule between --op allreduce,reduce,reducescatter --from 65536 --codec blocktopk --group 64 "
    "--kept 24 --nodes 1 --feedback 1 "
    "--rule rest --from 65536 --codec rowtopk --group 512 --kept 171 --feedback 1 "
    "--rule small --codec int8 --block 64 --min-bytes 2048";

inline constexpr const char* kSeriesUnevenNodes = R"(version = 1
[[rule]]
name = "runs"
match = { op = ["allreduce", "reduce", "reducescatter"], dtype = "f32", bytes = "64KiB.." }
codec = "randomk:fraction=0.5"
intra_codec = "rowtopk:row=512,kept=256"
algorithm = "hierarchical"
error_feedback = "ef14"
[[rule]]
name = "threshold_inside"
match = { op = ["allreduce", "reduce", "reducescatter"], dtype = "bf16", bytes = "64KiB.." }
codec = "int4:block=64"
intra_codec = "threshold:threshold=0.005,fraction=0.5"
algorithm = "hierarchical"
error_feedback = "ef14"
[[rule]]
name = "runs_inside"
match = { op = ["allreduce", "reduce", "reducescatter"], bytes = "64KiB.." }
codec = "topk:fraction=0.5,values=int8"
intra_codec = "randomk:fraction=0.5"
algorithm = "hierarchical"
error_feedback = "ef14"
[[rule]]
name = "rest"
match = { op = ["allreduce", "reducescatter", "reduce", "allgather", "broadcast", "alltoall",
    "gather", "scatter", "send", "recv"], bytes = "64KiB.." }
codec = "rowtopk:row=512,kept=256"
error_feedback = "ef14"
[[rule]]
name = "small"
codec = "int8:block=64"
min_bytes = 2048
)";
inline constexpr const char* kSeriesUnevenNodesRules =
    "--rule runs --op allreduce,reduce,reducescatter --dtype f32 --from 65536 --codec randomk "
    "--fraction 0.5 --intra rowtopk --intra-fraction 0.5 --nodes 1 --feedback 1 "
    "--rule threshold_inside --op allreduce,reduce,reducescatter --dtype bf16 --from 65536 "
    "--codec int4 --block 64 --threshold 0.005 --intra threshold --intra-fraction 0.5 --nodes 1 "
    "--feedback 1 "
    "--rule runs_inside --op allreduce,reduce,reducescatter --from 65536 --codec topk_int8 "
    "--fraction 0.5 --intra randomk --intra-fraction 0.5 --nodes 1 --feedback 1 "
    "--rule rest --from 65536 --codec rowtopk --group 512 --kept 256 --feedback 1 "
    "--rule small --codec int8 --block 64 --min-bytes 2048";

}  // namespace slimwire::test
