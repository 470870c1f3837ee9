// slimwire's own net plugin below the emulated NCCL: what crosses between nodes arrives bit for
// bit, in every version of the table and every protocol of NCCL, also beside the built-in network.
#include <gtest/gtest.h>

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
    EXPECT_NE(ended[0].err.find("using 'slimwire'"), std::string::npos) << ended[0].err;
}

TEST(SlimwireNet, every_version_of_the_table) {
    for (const int version : {8, 9, 10, 11, 12}) {
        SCOPED_TRACE(version);
        run({{"SLIMWIRE_EMU_PLUGIN_VERSIONS", "net:" + std::to_string(version)}}, "large");
    }
}

TEST(SlimwireNet, every_protocol) {
    for (const std::string protocol : {"LL", "LL128", "Simple"}) {
        SCOPED_TRACE(protocol);
        run({{"NCCL_PROTO", protocol}}, "small");
    }
}

TEST(SlimwireNet, without_a_codec_and_with_checksums) {
    run({{"SLIMWIRE_NET_CODEC", "off"}}, "large");
    run({{"SLIMWIRE_NET_CHECKSUM", "1"}}, "large");
}

TEST(SlimwireNet, several_ranks_on_a_node) {
    run({{"SLIMWIRE_EMU_NODES", "2x2"}}, "large", 4);
}

// --- Buffers of NCCL's in GPU memory, which a host access to traps

Environment on_gpu(Environment more = {}) {
    more["SLIMWIRE_NET_GPU"] = "1";
    more["NCCL_NET_GDR_LEVEL"] = "SYS";
    more["SLIMWIRE_EMU_STRICT"] = "1";
    return more;
}

TEST(SlimwireNet, gpu_memory_in_every_version_of_the_table) {
    for (const int version : {8, 10, 12}) {
        SCOPED_TRACE(version);
        run(on_gpu({{"SLIMWIRE_EMU_PLUGIN_VERSIONS", "net:" + std::to_string(version)}}), "large");
    }
}

TEST(SlimwireNet, gpu_memory_in_every_protocol) {
    for (const std::string protocol : {"LL", "LL128", "Simple"}) {
        SCOPED_TRACE(protocol);
        run(on_gpu({{"NCCL_PROTO", protocol}, {"SLIMWIRE_NET_CHECKSUM", "1"}}), "small");
    }
    run(on_gpu({{"NCCL_PROTO", "LL128"}}), "large");
}

// That NCCL's buffers were in GPU memory at all, and that an error there is the communicator's: the
// plugin's kernels are the only ones in the job.
TEST(SlimwireNet, a_kernel_that_fails_is_an_error_of_the_communicator) {
    Job job = emulator_job("sweep", 2, {"large"});
    job.limit_s = 60;
    job.library_path.push_back(SLIMWIRE_TEST_NET_PLUGIN);
    job.environment["NCCL_NET_PLUGIN"] = "slimwire";
    job.environment["NCCL_DEBUG"] = "WARN";
    for (const auto& [name, value] : on_gpu({{"SLIMWIRE_EMU_FAULT", "launch:3=700"}})) {
        job.environment[name] = value;
    }
    const auto ended = run_ranks(job);
    EXPECT_NE(unless_all_exit(ended), "");
    EXPECT_NE((ended[0].err + ended[1].err).find("cuda error 700"), std::string::npos)
        << ended[0].err << ended[1].err;
}

TEST(SlimwireNet, without_pinned_memory_the_job_goes_on_in_host_memory) {
    Job job = emulator_job("sweep", 2, {"large"});
    job.limit_s = 120;
    job.library_path.push_back(SLIMWIRE_TEST_NET_PLUGIN);
    job.environment["NCCL_NET_PLUGIN"] = "slimwire";
    for (const auto& [name, value] : on_gpu({{"SLIMWIRE_EMU_FAULT", "cudaHostAlloc:1+"}})) {
        job.environment[name] = value;
    }
    const auto ended = run_ranks(job);
    EXPECT_EQ(unless_all_exit(ended), "");
    EXPECT_NE(ended[0].err.find("bytes of pinned memory"), std::string::npos) << ended[0].err;
}

}  // namespace
}  // namespace slimwire::test
