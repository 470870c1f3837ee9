// Saved states whose bytes are written by hand, not by a plan.
#pragma once

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "collectives/state/state_file.h"
#include "tests/support/ranks.h"

namespace slimwire::test {

template <class T>
std::vector<std::byte> as_record(const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return {bytes.begin(), bytes.end()};
}

// Of a rank.
struct HandWritten {
    StateIndex index;
    std::vector<std::vector<std::byte>> records = {};

    void add(const LastingTensor& tensor,
             StateKind kind,
             std::vector<std::byte> bytes,
             uint64_t shape = 0) {
        index.tensors.push_back({tensor, shape, bytes.size(), kind});
        records.push_back(std::move(bytes));
    }
    // Residuals, and what says where they lie.
    void add(const LastingTensor& tensor,
             const std::vector<float>& residuals,
             std::vector<std::byte> map) {
        add(tensor, StateKind::kResiduals, as_record(residuals));
        add(tensor, StateKind::kMap, std::move(map));
    }
    [[nodiscard]] Status write(const std::string& path) const {
        return write_state(path, index, {}, [&](size_t i) { return records[i].data(); });
    }
};

// Of a job with one communicator of all ranks, whose key is 100 plus the rank.
inline HandWritten state_of(int rank, int ranks) {
    HandWritten state;
    state.index.launcher_rank = rank;
    state.index.launcher_size = ranks;
    const uint64_t key = 100 + static_cast<uint64_t>(rank);
    state.index.comms.push_back({key, rank, ranks, {}, 9, 0, {1}});
    return state;
}

class SavedJobs : public testing::Test {
  protected:
    void write(const HandWritten& state) {
        const std::string name = "state." + std::to_string(state.index.launcher_rank);
        ASSERT_TRUE(state.write(folder_.file(name)).ok());
    }
    TemporaryFolder folder_;
};

}  // namespace slimwire::test
