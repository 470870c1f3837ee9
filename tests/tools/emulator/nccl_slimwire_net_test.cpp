// slimwire's own net plugin below the emulated NCCL: what crosses between nodes arrives bit for
// bit, in every protocol of NCCL, also beside the built-in network.
#include <gtest/gtest.h>

#include "tests/support/has.h"
#include "tests/tools/emulator/nccl_jobs.h"

namespace slimwire::test {
namespace {

// The programs check every element of every result.
void run(const Environment& environment, const std::string& argument, int ranks = 2) {
    Job job = emulator_job("sweep", ranks, {argument});
    job.limit_s = 120;
    job.library_path.push_back(SLIMWIRE_TEST_NET_PLUGIN);
    job.environment["NCCL_NET_PLUGIN"] = "slimwire";
    job.environment["NCCL_DEBUG"] = "INFO";
    for (const auto& [name, value] : environment) {
        job.environment[name] = value;
    }
    const auto ended = run_ranks(job);
    EXPECT_EQ(unless_all_exit(ended), "");
    EXPECT_HAS(ended[0].err, "using 'slimwire'");
}

TEST(SlimwireNet, large_messages) {
    run({}, "large");
}

TEST(SlimwireNet, every_protocol) {
    for (const std::string protocol : {"LL", "LL128", "Simple"}) {
        SCOPED_TRACE(protocol);
        run({{"NCCL_PROTO", protocol}}, "small");
    }
}

TEST(SlimwireNet, without_a_codec_and_with_checksums) {
    run({{"SLIMWIRE_NET_CODEC", "off"}}, "large");
    run({{"SLIMWIRE_NET_CODEC", "palette,checksum"}}, "large");
}

TEST(SlimwireNet, several_ranks_on_a_node) {
    run({{"SLIMWIRE_EMU_NODES", "2x2"}}, "large", 4);
}

}  // namespace
}  // namespace slimwire::test
