// Every call that slimwire makes of CUDA and NCCL fails once (SLIMWIRE_EMU_FAULT), on one rank or
// on all. Whatever the call: no rank crashes, hangs or goes on with a wrong result; what a rank
// computes before the failure is right and equal on all ranks; and where a rank sees an error, it
// is the result of an NCCL call, or of a CUDA call of the program itself. Where it is an allocation
// that fails no rank sees any.
//
// A first run counts the calls. The tests take a sample of them by seed; TEST_FAULTS=all
// takes every one (some minutes), TEST_FAULTS=cudaMalloc:7 that one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <sstream>

#include "codecs/base/device.h"
#include "tests/support/has.h"
#include "tests/support/job.h"
#include "tests/support/seed.h"

namespace slimwire::test {
namespace {

// Those that NCCL needs to have made a communicator at all are the program's, not slimwire's:
// ncclGetUniqueId and ncclCommInitRank. Failing it leaves the others waiting, as without slimwire.
const std::vector<std::string>& functions() {
    static const std::vector<std::string> names = {
#define SLIMWIRE_NAME(member, function) #function,
        SLIMWIRE_DEVICE_FUNCTIONS(SLIMWIRE_NAME)
#undef SLIMWIRE_NAME
            "launch",
        "cudaGetDriverEntryPointByVersion",
        "cuMemAddressReserve",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemUnmap",
        "ncclAllReduce",
        "ncclReduceScatter",
        "ncclReduce",
        "ncclAllGather",
        "ncclBroadcast",
        "ncclAlltoAll",
        "ncclSend",
        "ncclRecv",
        "ncclGroupStart",
        "ncclGroupEnd",
        "ncclCommSplit",
        "ncclCommCount",
        "ncclCommUserRank",
        "ncclCommCuDevice",
        "ncclCommGetAsyncError",
        "ncclCommDestroy",
        "ncclCommAbort",
    };
    return names;
}

// Every allocation is one of CUDA's, not a part of what was mapped before.
constexpr const char* kPoolOnly = "cudaGetDriverEntryPointByVersion:1+";

struct Fault {
    std::string function;
    int call = 0;
    bool on_all = false;
    bool onwards = false;  // so do all later calls

    [[nodiscard]] std::string plan() const {
        return function + ":" + std::to_string(call) + (onwards ? "+" : "");
    }
};

std::string fault_name(const Fault& fault) {
    return fault.plan() + (fault.on_all ? " on all ranks" : " on rank 1");
}

Job make_job(const std::string& plan, bool on_all) {
    Job job = slimwire_job({SLIMWIRE_TEST_FAULTED}, 2);
    job.environment["SLIMWIRE_CODEC"] = "int8:block=64,rounding=stochastic";
    job.environment["SLIMWIRE_EF"] = "ef14";
    job.environment["SLIMWIRE_OPS"] = "all";
    job.environment["SLIMWIRE_MIN_BYTES"] = "1KiB";
    job.environment["runtime.slice_bytes"] = "16384";
    job.environment["runtime.agree_timeout"] = "3s";
    (on_all ? job.environment : job.of_rank[1])["SLIMWIRE_EMU_FAULT"] = plan;
    job.limit_s = 100;
    let_calls_wait(&job, "what takes the place of pools and pinned memory that failed waits");
    return job;
}

// "STEP ok HASH" lines.
std::map<std::string, std::string> results_of(const std::string& out) {
    std::map<std::string, std::string> results;
    std::istringstream lines(out);
    for (std::string line; std::getline(lines, line);) {
        const size_t at = line.find(" ok ");
        if (at != std::string::npos) {
            results[line.substr(0, at)] = line.substr(at + 4);
        }
    }
    return results;
}

// Memory, events and streams that a rank does not get are no business of the others.
bool allocates(const Fault& fault) {
    return fault.function == "cudaMalloc" || fault.function.rfind("cudaEventCreate", 0) == 0 ||
           fault.function.rfind("cudaStreamCreate", 0) == 0 ||
           fault.function == "cudaMallocFromPoolAsync" ||
           fault.function == "cudaGetDriverEntryPointByVersion" ||
           fault.function.rfind("cuMem", 0) == 0 || fault.function == "cudaHostAlloc" ||
           fault.function == "cudaMemPoolCreate";
}

// Except, of a communicator that was aborted, the scratch of its graphs, which the next captured
// call or the next end of a communicator frees. What cannot be freed stays.
bool everything_freed(const Fault& fault, const std::vector<Ended>& ranks) {
    return fault.function == "cudaFree" || fault.function == "cudaFreeAsync" ||
           fault.function == "cudaUserObjectRelease" || fault.function == "cuMemUnmap" ||
           std::all_of(ranks.begin(), ranks.end(), [](const Ended& rank) {
               const size_t at = rank.out.find("kept ");
               const bool graphs = rank.out.find("graph ") != std::string::npos &&
                                   rank.out.find("abort ") != std::string::npos;
               return graphs ||
                      (at != std::string::npos && std::atoi(rank.out.c_str() + at + 5) <= 0);
           });
}

// Of rank 1 of a job in which nothing fails.
struct Calls {
    int own = 0;  // of the program, before it makes its communicator
    int all = 0;
};

// `plan`: what fails nevertheless.
std::map<std::string, Calls> count_calls(std::string plan = "") {
    for (const std::string& function : functions()) {
        plan += (plan.empty() ? "" : ",") + function + ":1+=1us";
    }
    const std::vector<Ended> ranks = run_ranks(make_job(plan, false));
    EXPECT_EQ(unless_all_exit(ranks), "");
    EXPECT_EQ(results_of(ranks[1].out).size(), 9u) << ranks[1].out;
    EXPECT_TRUE(everything_freed({}, ranks)) << ranks[1].out;
    std::map<std::string, Calls> calls;
    bool own = true;
    std::istringstream lines(ranks[1].err);
    for (std::string line; std::getline(lines, line);) {
        const std::string prefix = "slimwire emulator: ";
        const size_t end = line.find(" call ");
        if (line.rfind(prefix, 0) == 0 && end != std::string::npos) {
            Calls& of = calls[line.substr(prefix.size(), end - prefix.size())];
            ++of.all;
            of.own += own ? 1 : 0;
        }
        own = own && line.rfind("faulted: ", 0) != 0;
    }
    ++calls["cudaGetDevice"].own;  // NCCL's, when it makes the communicator
    return calls;
}

std::vector<Fault> chosen_faults(bool on_all, size_t sample) {
    std::vector<Fault> all;
    for (const auto& [function, calls] : count_calls()) {
        for (int call = calls.own + 1; call <= calls.all; ++call) {
            all.push_back({function, call, on_all});
        }
    }
    EXPECT_GT(all.size(), 200u);
    const char* variable = std::getenv("TEST_FAULTS");
    const std::string wanted = variable != nullptr ? variable : "";
    if (wanted == "all") {
        return all;
    }
    if (!wanted.empty()) {
        const size_t colon = wanted.find(':');
        return {{wanted.substr(0, colon),
                 colon == std::string::npos ? 1 : std::stoi(wanted.substr(colon + 1)), on_all}};
    }
    // Of each function one in turn, so that rare ones come up as often as those called for each
    // slice.
    std::mt19937_64 random(test_seed());
    std::shuffle(all.begin(), all.end(), random);
    std::set<std::string> seen;
    std::stable_partition(all.begin(), all.end(),
                          [&](const Fault& fault) { return seen.insert(fault.function).second; });
    const size_t begin = on_all ? sample % all.size() : 0;
    std::rotate(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(begin), all.end());
    all.resize(std::min(sample, all.size()));
    return all;
}

void expect_order(const Fault& fault) {
    SCOPED_TRACE("repeat with TEST_FAULTS=" + fault.function + ":" + std::to_string(fault.call));
    const std::vector<Ended> ranks = run_ranks(make_job(fault.plan(), fault.on_all));
    EXPECT_TRUE(everything_freed(fault, ranks));
    ASSERT_EQ(unless_all_exit(ranks), "") << fault_name(fault);
    const auto first = results_of(ranks[0].out);
    for (const Ended& rank : ranks) {
        const std::string said = fault_name(fault) + "\n" + ranks[0].out + ranks[1].out + rank.err;
        if (allocates(fault)) {
            EXPECT_EQ(results_of(rank.out).size(), 9u) << said;
        }
        // Waiting for a rank that will never come is a hang that only the emulator's time limit
        // ended.
        EXPECT_EQ(rank.out.find("silent for"), std::string::npos) << said;
        for (const auto& [step, hash] : results_of(rank.out)) {
            const auto other = first.find(step);
            if (other != first.end()) {
                EXPECT_EQ(hash, other->second) << step << " differs; " << said;
            }
        }
    }
}

TEST(Faults, a_call_that_fails_on_one_rank) {
    for (const Fault& fault : chosen_faults(false, 34)) {
        expect_order(fault);
    }
}

TEST(Faults, a_call_that_fails_on_all_ranks) {
    for (const Fault& fault : chosen_faults(true, 12)) {
        expect_order(fault);
    }
}

// All memory from some allocation on: what is reserved before ranks agree, then residuals.
TEST(Faults, memory_that_one_rank_runs_out_of) {
    const int reserve = 1, last = count_calls(kPoolOnly).at("cudaMallocFromPoolAsync").all;
    const char* const asked = std::getenv("TEST_FAULTS");
    std::mt19937_64 random(test_seed());
    std::vector<int> calls(static_cast<size_t>(last));
    std::iota(calls.begin(), calls.end(), 1);
    if (asked == nullptr || std::string(asked) != "all") {
        calls = {1 + static_cast<int>(random() % static_cast<uint64_t>(last))};
    }
    for (const int call : calls) {
        expect_order({kPoolOnly + std::string(",cudaMallocFromPoolAsync"), call, false, true});
        expect_order({"cuMemCreate", call, false, true});
    }
    for (const int call : {reserve, reserve + 1}) {
        const TemporaryFolder reports;
        Job job = make_job(
            kPoolOnly + std::string(",cudaMallocFromPoolAsync:") + std::to_string(call) + "+",
            false);
        job.environment["SLIMWIRE_REPORT"] = reports.path() + "/report.%r.%p";
        const std::vector<Ended> ranks = run_ranks(job);
        ASSERT_EQ(unless_all_exit(ranks), "");
        std::map<int, uint64_t> compressed_calls, unfed;
        std::string reasons;
        for (const nlohmann::json& record : read_reports(reports.path())) {
            if (record.at("record") == "key") {
                compressed_calls[record.at("rank")] +=
                    compressed(record) ? record.at("calls").get<uint64_t>() : 0;
                reasons += record.at("reason");
            } else if (record.at("record") == "comm") {
                unfed[record.at("rank")] += record.at("unfed_calls").get<uint64_t>();
            }
        }
        EXPECT_EQ(compressed_calls[0], compressed_calls[1]);
        EXPECT_EQ(unfed[0], 0u);
        if (call == reserve) {
            EXPECT_EQ(compressed_calls[1], 0u);
            EXPECT_HAS(reasons, "more than the 0 that all ranks have");
        } else {
            EXPECT_GT(compressed_calls[1], 0u);
            EXPECT_GT(unfed[1], 0u);
        }
    }
}

// Estimates that one rank has no memory for on its device are the host's there.
TEST(Faults, state_that_other_ranks_count_on_is_kept_without_memory_of_the_device) {
    Job job =
        slimwire_job({SLIMWIRE_TEST_SPARSE_SUM, "8", "f32", "allreduce", "20000", "marked"}, 2);
    job.environment["SLIMWIRE_CODEC"] = "topk:fraction=0.2";
    job.environment["SLIMWIRE_EF"] = "ef21";
    job.environment["SLIMWIRE_MIN_BYTES"] = "1KiB";
    let_calls_wait(&job, "pinned memory in the place of the device's waits");
    const std::vector<Ended> whole = run_ranks(job);
    ASSERT_EQ(unless_all_exit(whole), "");
    job.of_rank[1]["SLIMWIRE_EMU_FAULT"] = kPoolOnly + std::string(",cudaMallocFromPoolAsync:2+");
    const std::vector<Ended> ranks = run_ranks(job);
    ASSERT_EQ(unless_all_exit(ranks), "");
    EXPECT_HAS(ranks[1].err, "that other ranks count on");
    EXPECT_EQ(ranks[0].out, whole[0].out);
    EXPECT_EQ(ranks[1].out, whole[0].out);
}

// The program knows of no codec: its results are native's, and no rank waits for one that
// compresses.
void expect_native_on_all(int ranks_of_job, int devices, const std::string& fault) {
    const TemporaryFolder reports;
    const int rank = ranks_of_job - 1;
    std::vector<std::string> command = {SLIMWIRE_TEST_CONFORMANCE, "--seed", "1", "--calls", "60"};
    if (devices > 1) {
        command.insert(command.end(), {"--devices", std::to_string(devices)});
    }
    Job job = slimwire_job(command, ranks_of_job, reports.path());
    job.environment["SLIMWIRE_EMU_DEVICES"] = std::to_string(devices);
    job.environment["SLIMWIRE_CODEC"] = "int8:block=64";
    job.environment["SLIMWIRE_OPS"] = "all";
    job.environment["SLIMWIRE_MIN_BYTES"] = "1KiB";
    const Job compressed_job = job;
    job.of_rank[rank]["SLIMWIRE_EMU_FAULT"] = fault;
    const std::vector<Ended> ranks = run_ranks(job);
    ASSERT_EQ(unless_all_exit(ranks), "");
    EXPECT_HAS(ranks[static_cast<size_t>(rank)].err, "slimwire's kernels do not load");
    const auto records = read_reports(reports.path());
    EXPECT_EQ(sum_keys(records, "calls", compressed), 0u);
    EXPECT_GT(sum_keys(records, "calls", any_key), 0u);
    // The control: where they load, results are a codec's.
    EXPECT_NE(unless_all_exit(run_ranks(compressed_job)), "");
}

// The emulated NCCL loads its own kernels first, once for each device.
TEST(Faults, kernels_that_do_not_load_on_one_rank_make_all_native) {
    expect_native_on_all(2, 1, "load_kernels:2");
}

TEST(Faults, kernels_that_do_not_load_on_one_device_make_all_of_the_process_native) {
    expect_native_on_all(1, 2, "load_kernels:4");
}

// What calls run with is there before ranks agree: at a call others would wait for this rank.
TEST(Faults, streams_and_events_that_one_rank_does_not_get_make_all_native) {
    for (const char* fault : {"cudaStreamCreateWithPriority:2", "cudaEventCreateWithFlags:1"}) {
        SCOPED_TRACE(fault);
        Job job = slimwire_job({SLIMWIRE_TEST_SPARSE_SUM, "3", "f32", "allreduce", "2000"}, 2);
        job.environment["SLIMWIRE_CODEC"] = "int8";
        job.environment["SLIMWIRE_MIN_BYTES"] = "1KiB";
        job.of_rank[1]["SLIMWIRE_EMU_FAULT"] = fault;
        const std::vector<Ended> ranks = run_ranks(job);
        EXPECT_EQ(unless_all_exit(ranks), "");
        for (const Ended& rank : ranks) {
            EXPECT_HAS(rank.out, "error 0.0000 0.0000");
        }
    }
}

// Then the communicator works, also where it shares with what is split off, so that the end of a
// private one could be its own. It is never split where some rank still waits in a split.
TEST(Faults, a_private_communicator_that_one_rank_does_not_get_makes_all_native) {
    Job job = slimwire_job({SLIMWIRE_TEST_SPARSE_SUM, "3", "f32", "allreduce", "2000"}, 2);
    job.environment["SLIMWIRE_CODEC"] = "int8";
    job.environment["SLIMWIRE_MIN_BYTES"] = "1KiB";
    job.environment["runtime.agree_timeout"] = "2s";
    job.of_rank[1]["SLIMWIRE_EMU_FAULT"] = "ncclCommSplit:1";
    std::vector<Ended> ranks = run_ranks(job);
    EXPECT_EQ(unless_all_exit(ranks), "");
    for (const Ended& rank : ranks) {
        EXPECT_HAS(rank.out, "error 0.0000 0.0000");
        EXPECT_HAS(rank.err, "no private communicator");
    }
    Job sharing = job;
    sharing.environment["NCCL_COMM_SPLIT_SHARE_RESOURCES"] = "1";
    sharing.of_rank[1]["SLIMWIRE_EMU_FAULT"] += ",ncclCommInitRankConfig:1";
    ranks = run_ranks(sharing);
    EXPECT_EQ(unless_all_exit(ranks), "");
    for (const Ended& rank : ranks) {
        EXPECT_HAS(rank.out, "error 0.0000 0.0000");
        EXPECT_HAS(rank.err, "no private communicator");
    }
    job.command = {SLIMWIRE_TEST_CONFORMANCE, "--seed", "1", "--calls", "1"};
    job.of_rank[1]["SLIMWIRE_EMU_FAULT"] += "=40s";
    ranks = run_ranks(job);
    for (const Ended& rank : ranks) {
        EXPECT_EQ(rank.exit_code, 4);
        EXPECT_HAS(rank.err, "cannot be split, shrunk or grown");
    }
}

// How often the function was called.
int calls_of(const char* function, const Ended& rank) {
    const std::string line = std::string("emulator: ") + function + " call ";
    int calls = 0;
    for (size_t at = 0; (at = rank.err.find(line, at)) != std::string::npos; ++at) {
        ++calls;
    }
    return calls;
}

// Calls are timed when the communicator is made, over its private one. What that takes ends with
// it.
TEST(Faults, calls_that_one_rank_cannot_time_make_all_native) {
    for (const char* fault : {"ncclReduceScatter:1", "cudaEventRecord:10", "ncclSend:9"}) {
        SCOPED_TRACE(fault);
        Job job = slimwire_job({SLIMWIRE_TEST_SPARSE_SUM, "3", "f32", "allreduce", "2000"}, 2);
        job.environment["SLIMWIRE_CODEC"] = "int8";
        job.environment["SLIMWIRE_MIN_BYTES"] = "auto";
        job.environment["SLIMWIRE_EMU_FAULT"] =
            "cudaEventCreateWithFlags:1+=1us,cudaEventCreate:1+=1us,cudaEventDestroy:1+=1us";
        job.of_rank[1]["SLIMWIRE_EMU_FAULT"] = job.environment["SLIMWIRE_EMU_FAULT"] + "," + fault;
        const std::vector<Ended> ranks = run_ranks(job);
        EXPECT_EQ(unless_all_exit(ranks), "");
        for (const Ended& rank : ranks) {
            EXPECT_HAS(rank.err, "rank 1 could not begin calls that are timed");
            EXPECT_GT(calls_of("cudaEventCreateWithFlags", rank), 0);
            EXPECT_EQ(
                calls_of("cudaEventCreateWithFlags", rank) + calls_of("cudaEventCreate", rank),
                calls_of("cudaEventDestroy", rank));
        }
    }
}

}  // namespace
}  // namespace slimwire::test
