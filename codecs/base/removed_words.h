// Words that users could once give and that slimwire no longer takes, each with what to do instead.
// The error about an unknown word looks here first. Tested by collectives/removed_words_test.cpp.
#pragma once

#include <string>
#include <string_view>

namespace slimwire {

enum class RemovedKind {
    kCodec,           // a codec's name
    kCodecParameter,  // a key of a codec's specification
    kPolicyKey,       // a key of a policy file
    kPolicyValue,     // "key=value" of a policy file
    kVariable,        // with SLIMWIRE_
    kReportVariable,  // the same, of what is said alone: a warning, no error
};

struct RemovedWord {
    std::string_view word;
    RemovedKind kind;
    std::string_view hint;  // "use int4 or int8"
};

inline constexpr RemovedWord kRemovedWords[] = {
    {"max_error", RemovedKind::kPolicyKey, "use one codec, or accordion"},
    {"ladder", RemovedKind::kPolicyKey, "use one codec, or accordion"},
    {"probe_every", RemovedKind::kPolicyKey, "use one codec, or accordion"},
    {"gate", RemovedKind::kPolicyKey,
     "min_bytes = \"auto\" goes by what slimwire calibrate measured"},
    {"gate_every", RemovedKind::kPolicyKey,
     "min_bytes = \"auto\" goes by what slimwire calibrate measured"},
    {"SLIMWIRE_GATE", RemovedKind::kVariable,
     "SLIMWIRE_MIN_BYTES=auto goes by SLIMWIRE_CALIBRATION"},
    {"SLIMWIRE_SLICE_BYTES", RemovedKind::kVariable,
     "write slice_bytes into [runtime] of the policy"},
    {"SLIMWIRE_AGREE_TIMEOUT", RemovedKind::kVariable,
     "write agree_timeout into [runtime] of the policy"},
    {"SLIMWIRE_TRACE_BYTES", RemovedKind::kVariable,
     "write trace_bytes into [runtime] of the policy"},
    {"SLIMWIRE_TRACE_SAMPLE", RemovedKind::kVariable,
     "write trace_sample into [runtime] of the policy"},
    {"SLIMWIRE_SUMMARY", RemovedKind::kReportVariable,
     "write summary into [runtime] of the policy"},
    {"SLIMWIRE_LOG_FILE", RemovedKind::kReportVariable,
     "write log_file into [runtime] of the policy"},
    {"SLIMWIRE_RESIDUAL", RemovedKind::kVariable, "write residual into a rule of the policy"},
    {"SLIMWIRE_BUILD_DIR", RemovedKind::kVariable, "use tools/build --dir"},
    {"SLIMWIRE_BUILD_ARGS", RemovedKind::kVariable, "give them to tools/build"},
    {"SLIMWIRE_BUILD_GPU_ARCHS", RemovedKind::kVariable, "use tools/build --gpu-archs"},
    {"SLIMWIRE_BUILD_INSTALL", RemovedKind::kVariable, "use tools/build --no-install"},
    {"SLIMWIRE_TEST_FAULTS", RemovedKind::kVariable, "use TEST_FAULTS"},
    {"SLIMWIRE_TEST_FUZZ_SECONDS", RemovedKind::kVariable, "use TEST_FUZZ_SECONDS"},
    {"SLIMWIRE_TEST_NET_LONG", RemovedKind::kVariable, "use TEST_NET_LONG"},
    {"SLIMWIRE_EMU_POISON", RemovedKind::kVariable, "SLIMWIRE_EMU_STRICT=1 does it too"},
    {"SLIMWIRE_EMU_TIMEOUT", RemovedKind::kVariable,
     "ranks wait as NCCL does, let what starts the job end it"},
    {"SLIMWIRE_EMU_IFNAME", RemovedKind::kVariable, "use NCCL_SOCKET_IFNAME"},
    {"SLIMWIRE_NET_PIECE_BYTES", RemovedKind::kVariable, "pieces have 128KiB, leave it out"},
    {"SLIMWIRE_NET_SIMPLE_FROM", RemovedKind::kVariable,
     "it is SLIMWIRE_NET_MIN_BYTES times the ranks"},
    {"SLIMWIRE_NET_CHECKSUM", RemovedKind::kVariable, "use SLIMWIRE_NET_CODEC=palette,checksum"},
    {"SLIMWIRE_NET_UCX_TLS", RemovedKind::kVariable, "use UCX_TLS"},
    {"SLIMWIRE_NET_RATE", RemovedKind::kVariable, "use SLIMWIRE_NET_LINK, like 10gbit"},
    {"SLIMWIRE_NET_LATENCY", RemovedKind::kVariable, "use SLIMWIRE_NET_LINK, like 10gbit,50us"},
    {"SLIMWIRE_EMU_PLUGIN_VERSIONS", RemovedKind::kVariable,
     "a library that exports one version of a table alone has it taken"},
    {"thc", RemovedKind::kCodec, "use int4 with ef14, or randomk by the algorithm summable"},
    {"encoder", RemovedKind::kPolicyKey, "linear_ae learns its code from the traffic"},
    {"decoder", RemovedKind::kPolicyKey, "linear_ae learns its code from the traffic"},
    {"codec=palette", RemovedKind::kPolicyValue,
     "the net plugin (NCCL_NET_PLUGIN=slimwire) sends losslessly by it"},
    {"algorithm=lossless", RemovedKind::kPolicyValue,
     "the net plugin (NCCL_NET_PLUGIN=slimwire) sends losslessly"},
    {"algorithm=shared_scale", RemovedKind::kPolicyValue, "leave 'algorithm' out"},
    {"range", RemovedKind::kPolicyKey, "rules go by param, index, ordinal or name"},
    {"loss_scale", RemovedKind::kPolicyKey, "call slimwire_set_loss_scale in the program"},
    {"rollback", RemovedKind::kPolicyKey, "residuals keep what a skipped step changed"},
    {"preview", RemovedKind::kPolicyKey, "it is called step_ahead"},
    {"steps", RemovedKind::kPolicyKey, "mark each step with slimwire_mark_step"},
    {"SLIMWIRE_NVTX_NEXT", RemovedKind::kVariable, "name the profiler in NVTX_INJECTION64_PATH"},
    {"SLIMWIRE_NET_GPU", RemovedKind::kVariable, "the net plugin takes host memory, leave it out"},
    {"SLIMWIRE_NET_SMS", RemovedKind::kVariable, "the net plugin has no kernels, leave it out"},
    {"SLIMWIRE_BENCH_FILL", RemovedKind::kVariable,
     "slimwire codec FILE tries codecs on data of your own"},
    {"int6", RemovedKind::kCodec, "use int8, or int4 with error feedback"},
    {"mxfp8e4m3", RemovedKind::kCodec, "use int8 or fp8e4m3, which err less"},
    {"mxfp8e5m2", RemovedKind::kCodec, "use int8 or fp8e5m2, which err less"},
    {"mxfp6e3m2", RemovedKind::kCodec, "use int8, or int4 with error feedback"},
    {"mxfp6e2m3", RemovedKind::kCodec, "use int8, or int4 with error feedback"},
    {"tensor", RemovedKind::kPolicyKey,
     "tensors are told apart by their slot in the training step, leave it out"},
    {"spike", RemovedKind::kCodecParameter, "use rotate=64, which spreads outliers"},
};

// "; it was removed: use int4 or int8" of such a word, else "".
inline std::string removed_hint(RemovedKind kind, std::string_view word) {
    for (const RemovedWord& removed : kRemovedWords) {
        if (removed.kind == kind && removed.word == word) {
            return "; it was removed: " + std::string(removed.hint);
        }
    }
    return {};
}

}  // namespace slimwire
