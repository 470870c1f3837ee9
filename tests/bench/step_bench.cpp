// What the step detector adds to a call: its signature and StepDetector::next(), on sequences that
// keep it in each of its states. One JSON line a case: the mean over a million calls, the median of
// five runs, heap allocations after the step was learned, and the part of the answers that was
// sure. With a limit, exit code 1 when a case takes longer a call or allocates.
//   step_bench [CALLS [LIMIT_NS]]      (1000000)
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "collectives/identity/step_detector.h"
#include "tests/bench/allocations.h"

namespace slimwire {
namespace {

using Calls = std::vector<CallSignature>;

CallSignature all_reduce(uint64_t count) {
    CallSignature signature;
    signature.redop = RedOp::kSum;
    signature.count = count;
    return signature;
}

// A step of `calls` all-reduces, again and again.
Calls steps(size_t calls, size_t total) {
    Calls sequence;
    for (size_t i = 0; i < total; ++i) {
        sequence.push_back(all_reduce(1000 + i % calls * 7 % 13 + (i % calls == 0 ? 100 : 0)));
    }
    return sequence;
}

// Calls of `kinds` kinds at random.
Calls noise(uint64_t kinds, size_t total) {
    std::mt19937 random(1);
    Calls sequence;
    for (size_t i = 0; i < total; ++i) {
        sequence.push_back(all_reduce(1000 + random() % kinds));
    }
    return sequence;
}

// Equal calls: the longest borders there are, and never a step.
Calls equal(size_t total) {
    return Calls(total, all_reduce(1000));
}

// Eight steps learned before, then calls that follow each of them for a while.
Calls probing(size_t total) {
    Calls sequence;
    std::mt19937 random(1);
    for (size_t step = 1; step <= 8; ++step) {
        for (size_t i = 0; i < 4000; ++i) {
            sequence.push_back(all_reduce(1000 + (i % (10 * step) == 0 ? step : 0)));
        }
    }
    while (sequence.size() < total) {
        for (size_t i = 20 + random() % 40; i > 0; --i) {
            sequence.push_back(all_reduce(1000));
        }
        sequence.push_back(all_reduce(1000 + random() % 9));
    }
    return sequence;
}

bool measure(const char* name, const Calls& calls, size_t warm_up, double limit_ns) {
    std::array<double, 5> ns{};
    uint64_t sure = 0, allocations = 0;
    for (double& of_run : ns) {
        StepDetector detector;
        sure = 0;
        for (size_t i = 0; i < warm_up; ++i) {
            sure += detector.next(call_signature(calls[i])).known() ? 1 : 0;
        }
        const uint64_t allocated = g_allocations;
        const auto begin = std::chrono::steady_clock::now();
        for (size_t i = warm_up; i < calls.size(); ++i) {
            sure += detector.next(call_signature(calls[i])).known() ? 1 : 0;
        }
        of_run = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin)
                     .count() /
                 static_cast<double>(calls.size() - warm_up);
        allocations = g_allocations - allocated;
    }
    std::sort(ns.begin(), ns.end());
    std::printf(
        "{\"v\":1,\"record\":\"bench_steps\",\"case\":\"%s\",\"calls\":%zu,\"call_ns\":%.1f,"
        "\"allocations\":%llu,\"sure_percent\":%.1f}\n",
        name, calls.size() - warm_up, ns[2], static_cast<unsigned long long>(allocations),
        100.0 * static_cast<double>(sure) / static_cast<double>(calls.size()));
    return limit_ns <= 0 || (ns[2] <= limit_ns && allocations == 0);
}

}  // namespace
}  // namespace slimwire

int main(int argc, char** argv) {
    using namespace slimwire;
    const auto calls = static_cast<size_t>(argc > 1 ? std::atol(argv[1]) : 1000000);
    const double limit_ns = argc > 2 ? std::atof(argv[2]) : 0;
    constexpr size_t kWarmUp = 40000;
    bool within = true;
    within &= measure("step_of_8", steps(8, kWarmUp + calls), kWarmUp, limit_ns);
    within &= measure("step_of_400", steps(400, kWarmUp + calls), kWarmUp, limit_ns);
    within &= measure("step_of_5000", steps(5000, kWarmUp + calls), kWarmUp, limit_ns);
    within &= measure("no_step", noise(3, kWarmUp + calls), kWarmUp, limit_ns);
    within &= measure("equal_calls", equal(kWarmUp + calls), kWarmUp, limit_ns);
    within &= measure("eight_steps_probed", probing(kWarmUp + calls), kWarmUp, limit_ns);
    return within ? 0 : 1;
}
