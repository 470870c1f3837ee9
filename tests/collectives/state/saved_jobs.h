// Saved states whose bytes are written by hand, not by a plan.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "collectives/state/state_file.h"
#include "tests/support/ranks.h"

namespace slimwire::test {

// Of a job with one communicator of all ranks, whose key is 100 plus the rank.
inline StateIndex index_of(int rank, int ranks) {
    StateIndex index;
    index.launcher_rank = rank;
    index.launcher_size = ranks;
    index.comms.push_back({100 + static_cast<uint64_t>(rank), rank, ranks, {}, 9, 0, {1}});
    return index;
}

class SavedJobs : public testing::Test {
  protected:
    void write(int rank, const StateIndex& index, const ReadResiduals& read) {
        ASSERT_TRUE(write_state(folder_.file("state." + std::to_string(rank)), index, read).ok());
    }
    TemporaryFolder folder_;
};

}  // namespace slimwire::test
