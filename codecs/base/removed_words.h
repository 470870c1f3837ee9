// Words that users could once give and that slimwire no longer takes, each with what to do instead.
// The error about an unknown word looks here first. Tested by
// collectives/policy/policy_errors_test.cpp.
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

struct RemovedWords {
    using enum RemovedKind;
    static constexpr RemovedWord kAll[] = {
        {"max_error", kPolicyKey, "use one codec, or accordion"},
        {"ladder", kPolicyKey, "use one codec, or accordion"},
        {"probe_every", kPolicyKey, "use one codec, or accordion"},
        {"gate", kPolicyKey, "min_bytes = \"auto\" goes by what slimwire calibrate measured"},
        {"gate_every", kPolicyKey, "min_bytes = \"auto\" goes by what slimwire calibrate measured"},
        {"SLIMWIRE_GATE", kVariable, "SLIMWIRE_MIN_BYTES=auto goes by SLIMWIRE_CALIBRATION"},
        {"SLIMWIRE_SLICE_BYTES", kVariable, "write slice_bytes into [runtime] of the policy"},
        {"SLIMWIRE_AGREE_TIMEOUT", kVariable, "write agree_timeout into [runtime] of the policy"},
        {"SLIMWIRE_TRACE_BYTES", kVariable, "write trace_bytes into [runtime] of the policy"},
        {"SLIMWIRE_TRACE_SAMPLE", kVariable, "write trace_sample into [runtime] of the policy"},
        {"SLIMWIRE_SUMMARY", kReportVariable, "write summary into [runtime] of the policy"},
        {"SLIMWIRE_LOG_FILE", kReportVariable, "write log_file into [runtime] of the policy"},
        {"SLIMWIRE_RESIDUAL", kVariable, "write residual into a rule of the policy"},
        {"SLIMWIRE_BUILD_DIR", kVariable, "use tools/build --dir"},
        {"SLIMWIRE_BUILD_ARGS", kVariable, "give them to tools/build"},
        {"SLIMWIRE_BUILD_GPU_ARCHS", kVariable, "use tools/build --gpu-archs"},
        {"SLIMWIRE_BUILD_INSTALL", kVariable, "use tools/build --no-install"},
        {"SLIMWIRE_TEST_FAULTS", kVariable, "use TEST_FAULTS"},
        {"SLIMWIRE_TEST_FUZZ_SECONDS", kVariable, "use TEST_FUZZ_SECONDS"},
        {"SLIMWIRE_TEST_NET_LONG", kVariable, "use TEST_NET_LONG"},
        {"SLIMWIRE_EMU_POISON", kVariable, "SLIMWIRE_EMU_STRICT=1 does it too"},
        {"SLIMWIRE_EMU_TIMEOUT", kVariable,
         "ranks wait as NCCL does, let what starts the job end it"},
        {"SLIMWIRE_EMU_IFNAME", kVariable, "use NCCL_SOCKET_IFNAME"},
        {"SLIMWIRE_NET_PIECE_BYTES", kVariable, "pieces have 128KiB, leave it out"},
        {"SLIMWIRE_NET_SIMPLE_FROM", kVariable, "it is SLIMWIRE_NET_MIN_BYTES times the ranks"},
        {"SLIMWIRE_NET_CHECKSUM", kVariable, "use SLIMWIRE_NET_CODEC=palette,checksum"},
        {"SLIMWIRE_NET_UCX_TLS", kVariable, "use UCX_TLS"},
        {"SLIMWIRE_NET_RATE", kVariable, "use SLIMWIRE_NET_LINK, like 10gbit"},
        {"SLIMWIRE_NET_LATENCY", kVariable, "use SLIMWIRE_NET_LINK, like 10gbit,50us"},
        {"SLIMWIRE_EMU_PLUGIN_VERSIONS", kVariable,
         "a library that exports one version of a table alone has it taken"},
        {"thc", kCodec, "use int4 with ef14, or randomk by the algorithm summable"},
        {"encoder", kPolicyKey, "linear_ae learns its code from the traffic"},
        {"decoder", kPolicyKey, "linear_ae learns its code from the traffic"},
        {"codec=palette", kPolicyValue,
         "the net plugin (NCCL_NET_PLUGIN=slimwire) sends losslessly by it"},
        {"algorithm=lossless", kPolicyValue,
         "the net plugin (NCCL_NET_PLUGIN=slimwire) sends losslessly"},
        {"algorithm=shared_scale", kPolicyValue, "leave 'algorithm' out"},
        {"range", kPolicyKey, "rules go by param, index, ordinal or name"},
        {"loss_scale", kPolicyKey, "call slimwire_set_loss_scale in the program"},
        {"rollback", kPolicyKey, "residuals keep what a skipped step changed"},
        {"preview", kPolicyKey, "it is called step_ahead"},
        {"steps", kPolicyKey, "mark each step with slimwire_mark_step"},
        {"SLIMWIRE_NVTX_NEXT", kVariable, "name the profiler in NVTX_INJECTION64_PATH"},
        {"SLIMWIRE_NET_GPU", kVariable, "the net plugin takes host memory, leave it out"},
        {"SLIMWIRE_NET_SMS", kVariable, "the net plugin has no kernels, leave it out"},
        {"SLIMWIRE_BENCH_FILL", kVariable, "slimwire codec FILE tries codecs on data of your own"},
        {"int6", kCodec, "use int8, or int4 with error feedback"},
        {"mxfp8e4m3", kCodec, "use int8 or fp8e4m3, which err less"},
        {"mxfp8e5m2", kCodec, "use int8 or fp8e5m2, which err less"},
        {"mxfp6e3m2", kCodec, "use int8, or int4 with error feedback"},
        {"mxfp6e2m3", kCodec, "use int8, or int4 with error feedback"},
        {"tensor", kPolicyKey,
         "tensors are told apart by their slot in the training step, leave it out"},
        {"spike", kCodecParameter, "use rotate=64, which spreads outliers"},
    };
};
inline constexpr const auto& kRemovedWords = RemovedWords::kAll;

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
