// SLIMWIRE_EMU_FAULT: calls of the emulated libraries that fail or are late on purpose. A list of
//
//   FUNCTION:N        the N-th call of this process fails, counted from 1, with
//                     cudaErrorMemoryAllocation or ncclInternalError
//   FUNCTION:N+       so do all later ones
//   FUNCTION:N=CODE   with this error number of CUDA or NCCL
//   FUNCTION:N=20ms   is not failed but delayed (units us ms s)
//
// separated by commas, such as cudaMalloc:3,ncclAllReduce:10=500ms. FUNCTION is an exported name
// without suffix; `launch` stands for slimwire's own device operations, `load_kernels` for loading
// a library's kernels, NCCL's first. Calls that only touch nodes of a graph, or say what the
// emulator lacks, are not counted. A failed call does nothing, but that a failed ncclGroupEnd ends
// the group; each one, and each late one, is a line on stderr. Included by both emulated libraries,
// each of which counts its own calls. Any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>
#include <string_view>
#include <thread>

#include "codecs/base/number_text.h"

namespace slimwire::emulator {

class FaultPlan {
  public:
    static constexpr char kAccepted[] =
        "a list like cudaMalloc:3,ncclAllReduce:10+=6,launch:2=20ms (function, number of the call, "
        "+ for all later ones, error number or delay)";

    // False when the text is not understood.
    bool parse(std::string_view text) {
        while (!text.empty()) {
            const size_t comma = text.find(',');
            if (!parse_rule(text.substr(0, comma))) {
                return false;
            }
            text = comma == std::string_view::npos ? "" : text.substr(comma + 1);
        }
        return true;
    }

    [[nodiscard]] bool empty() const { return rules_.empty(); }

    // Counts a call of `function` and delays it where asked. The error it has to return,
    // `otherwise` where the rule names none; 0 to go on.
    int on_call(std::string_view function, int otherwise) {
        int error = 0;
        for (Rule& rule : rules_) {
            if (rule.function != function) {
                continue;
            }
            const uint64_t call = ++rule.calls;
            if (call == rule.first || (rule.onwards && call > rule.first)) {
                if (rule.delay_ns == 0) {
                    error = rule.error != 0 ? rule.error : otherwise;
                }
                std::fprintf(stderr, "slimwire emulator: %s call %llu: %s (SLIMWIRE_EMU_FAULT)\n",
                             rule.function.c_str(), static_cast<unsigned long long>(call),
                             error != 0 ? ("error " + std::to_string(error)).c_str() : "late");
                std::this_thread::sleep_for(std::chrono::nanoseconds(rule.delay_ns));
            }
        }
        return error;
    }

  private:
    struct Rule {
        std::string function;
        uint64_t first = 0;
        bool onwards = false;
        int error = 0;
        int64_t delay_ns = 0;
        std::atomic<uint64_t> calls{0};
    };

    bool parse_rule(std::string_view text) {
        const size_t colon = text.find(':');
        const std::string_view name = text.substr(0, colon);
        if (colon == std::string_view::npos ||
            !(name == "launch" || name == "load_kernels" || name.starts_with("cu") ||
              name.starts_with("nccl"))) {
            return false;
        }
        const std::string rest(text.substr(colon + 1));
        char* end = nullptr;
        Rule& rule = rules_.emplace_back();
        rule.function = name;
        rule.first = std::strtoull(rest.c_str(), &end, 10);
        rule.onwards = *end == '+';
        end += rule.onwards ? 1 : 0;
        if (*end == '=') {
            const auto [number, unit] = leading_number(end + 1);
            rule.delay_ns = static_cast<int64_t>(number * (unit == "us"   ? 1e3
                                                           : unit == "ms" ? 1e6
                                                           : unit == "s"  ? 1e9
                                                                          : 0));
            rule.error = unit.empty() ? static_cast<int>(number) : 0;
            return rule.first > 0 && (rule.delay_ns > 0) != (rule.error > 0);
        }
        return rule.first > 0 && *end == '\0' && rest.front() != '-';
    }

    std::deque<Rule> rules_;
};

}  // namespace slimwire::emulator
