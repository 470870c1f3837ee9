// SLIMWIRE_BENCH_FILL: real-looking data in the send buffers of a benchmark that fills its own with
// random bits or not at all, which no codec compresses as it does gradients. Called by dispatch for
// a compressed call when the variable is set, and never otherwise. It overwrites what the program
// will send: no job that wants its results sets it. Plans do not depend on it.
#pragma once

#include "collectives/call.h"
#include "collectives/runtime.h"

namespace slimwire {

// Enqueues, before the first call of each (send buffer, size), a copy of the chosen data into it on
// the call's stream; ranks get different parts of it. Calls that send nothing from this rank, types
// that are not fp64, fp32, fp16 or bf16, and captured calls are left alone. An error names the file
// and what is wrong with it.
Status fill_for_benchmark(Runtime& runtime, const CollectiveCall& call, const CommState& state);

// The data: kPatternElems elements or those of the file, of `dtype`. gaussian: normal deviates.
// gradient: layers of them whose scales are log-uniform from 1e-6 to 1e-2, in rows of 1024 with
// log-normal scales. A path: a .npy of f2, f4 or f8, converted; any other file as it is.
inline constexpr uint64_t kPatternElems = uint64_t{1} << 21;
Result<std::vector<uint8_t>> benchmark_pattern(const std::string& source, DType dtype);

// Elements that the call reads of its send buffer on this rank.
[[nodiscard]] uint64_t sent_elems(const CallFacts& facts, int rank, int ranks) noexcept;

}  // namespace slimwire
