// The modes that only observe: the job's bits are those without slimwire, whatever it does, and the
// trace tells what it did.
#include <gtest/gtest.h>

#include <set>

#include "collectives/identity/step_detector.h"
#include "tests/collectives/trace_reader.h"
#include "tests/e2e/observed_job.h"
#include "tests/support/has.h"

namespace slimwire::test {
namespace {

TEST(Record, leaves_every_bit_and_every_error_as_it_is) {
    const TemporaryFolder folder;
    std::string errors;
    EXPECT_EQ(
        outputs_of(observed_job("record", folder.path(), {{"runtime.summary", "1"}}), &errors),
        native_outputs());
    // Rank 0 says what to do with the trace.
    const std::string trace = folder.file("trace.0");
    EXPECT_HAS(errors, "summary: trace " + trace + "; next: slimwire report " + trace);
}

TEST(Record, traces_every_call_with_place_time_and_data) {
    const TemporaryFolder folder;
    const std::string outputs = outputs_of(observed_job("record", folder.path()));
    int made = 0;
    ASSERT_EQ(std::sscanf(outputs.c_str() + outputs.find("calls "), "calls %d", &made), 1);
    std::vector<ReadTrace> traces;
    for (int rank = 0; rank < 2; ++rank) {
        traces.push_back(read_trace(folder.file("trace." + std::to_string(rank))));
        const ReadTrace& trace = traces.back();
        EXPECT_EQ(trace.header.at("mode"), "record");
        EXPECT_EQ(trace.dropped, 0u);
        ASSERT_EQ(trace.calls.size(), static_cast<size_t>(made));
        ASSERT_EQ(trace.comms.size(), 3u);
        size_t captured = 0, grouped = 0, timed = 0, refused = 0, in_place = 0;
        for (size_t i = 0; i < trace.calls.size(); ++i) {
            const TracedCall& call = trace.calls[i];
            EXPECT_EQ(call.call, i + 1);
            EXPECT_EQ(call.bytes, call.signature.count * dtype_bytes(call.signature.dtype));
            captured += call.captured ? 1 : 0;
            grouped += call.group != 0 ? 1 : 0;
            timed += call.device_us >= 0 ? 1 : 0;
            refused += call.result != 0 && call.result != 7 ? 1 : 0;
            in_place += call.in_place ? 1 : 0;
            EXPECT_FALSE(call.captured && call.device_us >= 0);
        }
        EXPECT_EQ(captured, 3u);
        EXPECT_EQ(grouped, 4u + 2u + 1u);
        EXPECT_EQ(refused, 5u);
        EXPECT_GT(timed, 40u);
        EXPECT_EQ(in_place, 12u + 1u + 1u);
        ASSERT_EQ(trace.groups.size(), 3u);
        EXPECT_EQ(trace.groups[0].at("calls"), 4);
        EXPECT_EQ(trace.groups[2].at("result"), 4);
    }
    // Ranks have equal keys, of communicators and tensors, though they never spoke.
    for (size_t i = 0; i < traces[0].calls.size(); ++i) {
        EXPECT_EQ(traces[0].calls[i].comm, traces[1].calls[i].comm);
        if (!is_point_to_point(traces[0].calls[i].signature.op)) {
            EXPECT_EQ(traces[0].calls[i].tensor, traces[1].calls[i].tensor);
        }
    }
}

TEST(Record, a_trace_drives_the_step_detector) {
    const TemporaryFolder folder;
    (void)outputs_of(observed_job("record", folder.path()));
    const ReadTrace trace = read_trace(folder.file("trace.1"));
    StepDetector detector;
    const std::string training = trace.calls.back().comm;
    size_t sure = 0;
    std::set<std::string> tensors, places;
    for (const TracedCall& call : trace.calls) {
        if (call.comm != training || is_point_to_point(call.signature.op)) {
            continue;
        }
        const StepPosition place =
            detector.next(call_signature(call.signature), stream_call(call.signature));
        ASSERT_EQ(place.known(), !call.path.empty());
        if (place.known()) {
            ++sure;
            ASSERT_EQ(place.ordinal, call.place);
            tensors.insert(call.tensor);
            places.insert(call.tensor + " at " + std::to_string(call.place));
        }
    }
    EXPECT_GT(sure, 100u);
    EXPECT_EQ(tensors.size(), 3u);
    EXPECT_EQ(places.size(), 3u);
}

TEST(Record, samples_say_what_the_data_is) {
    const TemporaryFolder folder;
    (void)outputs_of(observed_job("record", folder.path()));
    const ReadTrace trace = read_trace(folder.file("trace.0"));
    ASSERT_GT(trace.samples.size(), 20u);
    for (const nlohmann::json& sample : trace.samples) {
        EXPECT_EQ(sample.at("nonfinite"), 0);
        EXPECT_GT(sample.at("largest"), 0.0);
        const double largest = sample.at("largest");
        EXPECT_LE(sample.at("mean_square").get<double>(), largest * largest * (1 + 1e-6));
        EXPECT_GE(sample.at("exponent_bits"), 0.0);
        EXPECT_LE(sample.at("exponent_bits"), 8.0);
    }
}

class ModesThatObserve : public testing::TestWithParam<const char*> {
  protected:
    void run(const Job& job, std::string* errors = nullptr) {
        EXPECT_EQ(outputs_of(job, errors), native_outputs());
    }
    void expect_trace() {
        const ReadTrace trace = read_trace(folder_.file("trace.1"));
        EXPECT_GT(trace.calls.size(), 700u);
        EXPECT_EQ(trace.rehearsals.size() > 8, std::string(GetParam()) == "shadow");
    }
    const TemporaryFolder folder_;
    const Environment codec_ =
        std::string(GetParam()) == "shadow"
            ? Environment{{"SLIMWIRE_CODEC", "int8"}, {"SLIMWIRE_EF", "ef14"}}
            : Environment{};
};

TEST_P(ModesThatObserve, need_no_slimwire_on_the_other_ranks) {
    Job job = observed_job(GetParam(), folder_.path(), codec_);
    job.without_preload = {0};
    run(job);
    expect_trace();
}

TEST_P(ModesThatObserve, make_ranks_that_would_compress_native) {
    Job job = observed_job(GetParam(), folder_.path(), codec_);
    job.of_rank[0] = {{"SLIMWIRE_MODE", "on"},
                      {"SLIMWIRE_CODEC", "int8"},
                      {"SLIMWIRE_LOG", "error"},
                      {"SLIMWIRE_MIN_BYTES", "1KiB"}};
    run(job);
    expect_trace();
}

TEST_P(ModesThatObserve, say_a_wrong_configuration_and_do_not_fail) {
    const bool shadow = std::string(GetParam()) == "shadow";  // record reads no codec
    const auto [variable, value] =
        shadow ? std::pair("SLIMWIRE_CODEC", "int99") : std::pair("runtime.trace_bytes", "many");
    std::string errors;
    run(observed_job(GetParam(), folder_.path(), {{variable, value}}), &errors);
    EXPECT_HAS(errors, value);
}

INSTANTIATE_TEST_SUITE_P(Modes,
                         ModesThatObserve,
                         testing::Values("record", "shadow"),
                         [](const auto& mode) { return std::string(mode.param); });

}  // namespace
}  // namespace slimwire::test
