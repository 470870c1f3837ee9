// What one call carries: the gradients of which parameters of a model, and where they lie in the
// call's buffer. Rules that ask for parameters are answered from it (policy.h), each range for
// itself. Equal on all ranks, like the facts of the call; who finds it out is
// identity/ddp/listener.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace slimwire {

struct ParameterRange {
    uint64_t offset = 0;     // elements from the start of the buffer
    uint64_t count = 0;      // elements
    uint32_t parameter = 0;  // index among the model's parameters
    uint8_t dimensions = 0;  // of the parameter; 0: not known
    std::string name = {};   // of the parameter; empty while not known
    std::string key = {};    // the same, of no other parameter of the communicator
    // Of a parameter that is whole: extent of the dimension that lies outermost in memory, so that
    // the elements are a matrix of so many rows; 0: not known.
    int64_t rows = 0;
    bool operator==(const ParameterRange&) const = default;
};

// Ascending and without gaps from 0 to the call's count.
struct ParameterRanges {
    std::vector<ParameterRange> ranges;
    // Of the tensor that they are, in DDP's bucket table: the same in every process (StepPosition);
    // 0: no table.
    uint64_t path = 0;
    uint32_t occurrence = 0;  // buckets of as many elements before it in the step
    uint64_t model = 0;       // whose parameters they are: the same in every process
    bool operator==(const ParameterRanges&) const = default;
};

}  // namespace slimwire
