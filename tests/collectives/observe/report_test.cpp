// Records and summary from counters: members of SCHEMA.md, totals, bounds on size.
#include "collectives/observe/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <array>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <sstream>
#include <utility>

namespace slimwire {
namespace {

using Json = nlohmann::json;

std::vector<Json> report_parsed(const std::string& text) {
    EXPECT_FALSE(text.empty());
    EXPECT_EQ(text.back(), '\n');
    std::istringstream stream(text);
    std::vector<Json> records;
    for (std::string line; std::getline(stream, line);) {
        records.push_back(Json::parse(line));
        EXPECT_EQ(records.back().at("v"), 1);
    }
    return records;
}

KeyRecord key(const std::string& codec, uint64_t calls, const std::string& reason = "rule") {
    KeyRecord record;
    record.signature = {Op::kAllReduce, DType::kFloat32, RedOp::kSum, 0, 1000};
    record.rule = "env";
    record.codec = codec;
    record.algorithm = codec == "native" ? "native" : "two_shot";
    record.reason = reason;
    record.calls = calls;
    record.input_bytes = calls * 4000;
    record.wire_bytes = calls * (codec == "native" ? 6000 : 750);
    record.native_wire_bytes = calls * 6000;
    record.timed_calls = calls;
    record.time_ns = calls * 1500;
    record.wire_is_estimate = codec == "native";
    return record;
}

CommRecord comm(std::vector<KeyRecord> keys) {
    CommRecord record;
    record.comm = "00000000000000ab";
    record.ranks = 4;
    record.nodes = 2;
    record.agreement = "go";
    record.keys = std::move(keys);
    return record;
}

ProcessRecord process() {
    ProcessRecord record;
    record.info = {"0.1.0", 0xabc, "p.toml", true, "2.28.9", "/usr/lib/libnccl.so.2", "emulator"};
    record.host = "node1";
    record.pid = 77;
    record.launcher_rank = 0;
    return record;
}

uint64_t keys_total(const CommRecord& record, uint64_t KeyRecord::*member) {
    return std::accumulate(record.keys.begin(), record.keys.end(), uint64_t{0},
                           [&](uint64_t sum, const KeyRecord& k) { return sum + k.*member; });
}

// As a feature would.
ReportFields fields(uint64_t times, double size) {
    return {{"times", times},
            {"size", size},
            {"counts", ReportFields{{"seen", times}, {"sure", true}}},
            {"tensors", std::vector<ReportFields>{{{"slot", uint64_t{3}}, {"hash", "0f"}}}}};
}

TEST(Report, fields_of_features_are_members_of_the_key_and_of_folded_ones_their_sums) {
    KeyRecord one = key("int4", 1), other = one;
    one.fields = fields(2, 0.5);
    other.fields = fields(5, 0.25);
    CommRecord record = comm({one, other});
    for (const bool folded : {false, true}) {
        fold_keys(folded ? 0 : 2, &record);
        const Json json = report_parsed(report_lines(process(), {record})).at(2);
        EXPECT_EQ(json.at("times"), folded ? 7 : 2);
        EXPECT_EQ(json.at("size"), 0.5);
        EXPECT_EQ(json.at("counts"), (Json{{"seen", folded ? 7 : 2}, {"sure", true}}));
        EXPECT_EQ(json.value("tensors", Json()),
                  folded ? Json() : (Json{{{"slot", 3}, {"hash", "0f"}}}));
    }
}

TEST(Report, what_the_program_told_is_in_the_process_record) {
    Training training;
    ProcessRecord record = process();
    record.training = training_record(training);
    auto json = report_parsed(report_lines(record, {})).at(0);
    EXPECT_EQ(json.at("phase"), "training");
    EXPECT_TRUE(json.at("step").is_null());
    EXPECT_TRUE(json.at("learning_rate").is_null());
    training.mark_step(0);
    training.mark_phase(Phase::kOther);
    EXPECT_TRUE(json.at("loss_scale").is_null());
    training.set_learning_rate(0.25);
    EXPECT_TRUE(training.set_loss_scale(65536));
    EXPECT_FALSE(training.set_loss_scale(65536)) << "nothing new";
    EXPECT_EQ(training.changes, 4u);
    record.training = training_record(training);
    json = report_parsed(report_lines(record, {})).at(0);
    EXPECT_EQ(json.at("phase"), "other");
    EXPECT_EQ(json.at("step"), 0);
    EXPECT_EQ(json.at("learning_rate"), 0.25);
    EXPECT_EQ(json.at("loss_scale"), 65536);
}

TEST(Report, a_key_has_a_name_while_all_its_calls_have_one) {
    CommStats stats;
    stats.comm = "c";
    CallStats& key = stats.add_key();
    stats.publish(key);
    const char* const first = "first";
    key.count_name(nullptr);
    EXPECT_EQ(stats.snapshot().keys[0].name, "");
    key.count_name(first);
    key.count_name(first);
    EXPECT_EQ(stats.snapshot().keys[0].name, "first");
    CommRecord folded = stats.snapshot();
    folded.keys.push_back(folded.keys[0]);
    fold_keys(0, &folded);
    ASSERT_EQ(folded.keys.size(), 1u);
    EXPECT_EQ(folded.keys[0].name, "");
    key.count_name(nullptr);
    EXPECT_EQ(stats.snapshot().keys[0].name, "");
    key.count_name(first);
    EXPECT_EQ(stats.snapshot().keys[0].name, "");
}

TEST(Report, records_carry_what_was_counted) {
    const auto records = report_parsed(report_lines(process(), {comm({key("int4", 5)})}));
    ASSERT_EQ(records.size(), 3u);
    EXPECT_EQ(records[0].at("record"), "process");
    EXPECT_EQ(records[0].at("config_hash"), "0000000000000abc");
    EXPECT_EQ(records[0].at("nccl_version"), "2.28.9");
    EXPECT_EQ(records[0].at("launcher_rank"), 0);
    EXPECT_EQ(records[1].at("record"), "comm");
    EXPECT_EQ(records[1].at("agreement"), "go");
    EXPECT_EQ(records[1].at("nodes"), 2);
    EXPECT_EQ(records[2], Json::parse(R"({
        "v": 1, "record": "key", "comm": "00000000000000ab", "rank": 0, "op": "allreduce",
        "dtype": "f32", "redop": "sum", "count": 1000, "root_or_peer": 0, "rule": "env",
        "codec": "int4", "algorithm": "two_shot", "reason": "rule", "calls": 5,
        "input_bytes": 20000, "wire_bytes": 3750, "native_wire_bytes": 30000,
        "wire_is_estimate": false, "timed_calls": 5, "time_us": 7.5})"));
}

KeyRecord shadowed(const std::string& codec, uint64_t calls) {
    KeyRecord record = key("native", calls, "SLIMWIRE_MODE is shadow");
    record.shadow_codec = codec;
    record.shadow_algorithm = "two_shot";
    record.shadow_wire_bytes = calls * 750;
    return record;
}

TEST(Report, what_mode_on_would_send_stands_beside_what_was_sent) {
    const auto records =
        report_parsed(report_lines(process(), {comm({shadowed("int4", 5), key("native", 1)})}));
    ASSERT_EQ(records.size(), 4u);
    EXPECT_EQ(records[2].at("codec"), "native");
    EXPECT_EQ(records[2].at("wire_bytes"), 30000);
    EXPECT_EQ(records[2].at("shadow_codec"), "int4");
    EXPECT_EQ(records[2].at("shadow_algorithm"), "two_shot");
    EXPECT_EQ(records[2].at("shadow_wire_bytes"), 3750);
    EXPECT_FALSE(records[3].contains("shadow_codec"));
    CommRecord many = comm({shadowed("int4", 5), shadowed("int8", 1), shadowed("int4", 2)});
    fold_keys(0, &many);
    ASSERT_EQ(many.keys.size(), 2u);
    EXPECT_EQ(many.keys[0].shadow_wire_bytes + many.keys[1].shadow_wire_bytes, 8u * 750);
    ProcessRecord idle = process();
    idle.info.active = false;
    CommRecord observed = comm({shadowed("int4", 8)});
    observed.agreement = "native: SLIMWIRE_MODE is shadow";
    const auto lines = summary_lines(idle, {observed}, "");
    EXPECT_EQ(lines, (std::vector<std::string>{
                         "rank 0 compressed none of its 8 calls (policy p.toml)",
                         "mode on would compress 8 of them and send 5.86 KiB instead of 46.9 KiB, "
                         "8.00 times fewer bytes",
                         "8 calls of 31.2 KiB stayed native: SLIMWIRE_MODE is shadow (8)"}));
    idle.info.stated_mb_s = 125;
    observed.nodes = 2;
    CommRecord inside = observed;
    inside.nodes = 1;
    EXPECT_EQ(summary_lines(idle, {observed, inside}, "")[1],
              "mode on would compress 16 of them and send 11.7 KiB instead of 93.8 KiB, 8.00 times "
              "fewer bytes; at 1 Gbit/s this would save about 336 us on the wire");
}

// The page that fixes the records names every member that is written.
TEST(Report, schema_names_every_member) {
    const char* root = std::getenv("SOURCE_ROOT");
    ASSERT_NE(root, nullptr);
    std::ifstream file(std::string(root) + "/collectives/SCHEMA.md");
    std::ostringstream schema;
    schema << file.rdbuf();
    CommRecord many = comm({shadowed("int4", 1), key("int4", 1), key("int4", 1)});
    many.keys[1].lacks_feedback = true;
    many.keys[1].remedy = "less";
    fold_keys(2, &many);
    for (const Json& record : report_parsed(report_lines(process(), {many}))) {
        for (const auto& [name, value] : record.items()) {
            EXPECT_NE(schema.str().find("`" + name + "`"), std::string::npos) << name;
        }
    }
}

TEST(Report, bytes_that_are_no_text_do_not_break_a_line) {
    ProcessRecord odd = process();
    odd.host = "bad\xff\xfe";
    odd.info.policy_source = "line\nbreak \"quoted\"";
    odd.launcher_rank.reset();
    const auto records = report_parsed(report_lines(odd, {}));
    ASSERT_EQ(records.size(), 1u);
    EXPECT_EQ(records[0].at("policy_source"), "line\nbreak \"quoted\"");
    EXPECT_TRUE(records[0].at("launcher_rank").is_null());
}

TEST(Report, keys_beyond_the_bound_are_added_up_and_no_total_is_lost) {
    CommRecord record = comm({});
    for (uint64_t i = 0; i < 5000; ++i) {
        record.keys.push_back(key(i % 2 == 0 ? "int4" : "native", 1 + i % 7));
        record.keys.back().signature.count = i;
    }
    const uint64_t calls = keys_total(record, &KeyRecord::calls);
    const uint64_t wire = keys_total(record, &KeyRecord::wire_bytes);
    fold_keys(kMaxKeysPerComm, &record);
    EXPECT_EQ(record.keys.size(), kMaxKeysPerComm + 2);
    EXPECT_FALSE(record.keys[kMaxKeysPerComm - 1].folded);
    EXPECT_TRUE(record.keys[kMaxKeysPerComm].folded);
    EXPECT_EQ(record.keys[kMaxKeysPerComm].signature.count, 0u);
    EXPECT_EQ(keys_total(record, &KeyRecord::calls), calls);
    EXPECT_EQ(keys_total(record, &KeyRecord::wire_bytes), wire);
}

TEST(Report, communicators_that_are_gone_are_added_up) {
    CommRecord all;
    for (int i = 0; i < 100; ++i) {
        fold_comm(comm({key("int4", 2), key("native", 3, "op " + std::to_string(i % 4))}), &all);
    }
    EXPECT_EQ(all.comm, "folded");
    EXPECT_EQ(all.communicators, 100u);
    EXPECT_EQ(all.agreement, "go");
    EXPECT_EQ(all.keys.size(), 5u);
    EXPECT_EQ(keys_total(all, &KeyRecord::calls), 500u);
    CommRecord other = comm({});
    other.agreement = "native: rank 1 has no slimwire";
    fold_comm(other, &all);
    EXPECT_EQ(all.agreement, "mixed");
}

TEST(Report, stats_multiply_calls_by_bytes_of_a_plan_or_add_those_of_each_call) {
    CommStats stats;
    EXPECT_EQ(stats.mark(), 0u) << "not shown before it is filled in";
    CallStats& hidden = stats.add_key();
    CallStats& shown = stats.add_key();
    CallStats& folded = stats.add_key();
    hidden.count_call();
    shown.input_bytes_per_call = 100;
    shown.wire_bytes_per_call = 30;
    shown.native_bytes_per_call = 150;
    folded.folded = true;
    stats.publish(shown);
    stats.publish(folded);
    const uint64_t before = stats.mark();
    shown.count_call();
    shown.count_call();
    shown.count_time(2500);
    EXPECT_NE(stats.mark(), before);
    folded.count_folded_call(100, 150, 50);
    folded.count_folded_call(7, 9, 3);
    const CommRecord record = stats.snapshot();
    ASSERT_EQ(record.keys.size(), 2u) << "only published keys are reported";
    const auto bytes_of = [](const KeyRecord& key) {
        return std::array{key.calls, key.input_bytes, key.wire_bytes, key.native_wire_bytes};
    };
    EXPECT_EQ(bytes_of(record.keys[0]), (std::array<uint64_t, 4>{2, 200, 60, 300}));
    EXPECT_EQ(bytes_of(record.keys[1]), (std::array<uint64_t, 4>{2, 107, 53, 159}));
    EXPECT_EQ(record.keys[0].timed_calls, 1u);
    EXPECT_EQ(record.keys[0].time_ns, 2500u);
    EXPECT_TRUE(record.keys[1].folded);
    stats.update([](CommStats& s) { s.agreement = "error: x"; });
    EXPECT_EQ(stats.snapshot().agreement, "error: x");
}

TEST(Report, every_count_of_a_communicator_is_in_its_record_and_stays_where_it_should) {
    constexpr uint64_t kFirst = 10;
    CommStats stats;
    stats.comm = "1";
    stats.update([](CommStats&) {});
    uint64_t value = kFirst, mark = stats.mark();
    for (const auto& count : kCommCounts<std::atomic<uint64_t>>) {
        (stats.*count.member).store(value++);
        const uint64_t before = std::exchange(mark, stats.mark());
        EXPECT_NE(mark, before) << count.name;
    }
    const CommRecord record = stats.snapshot();
    CommRecord total;
    fold_comm(record, &total);
    fold_comm(record, &total);
    const Json json = report_parsed(report_lines(process(), {record})).at(1);
    value = kFirst;
    for (const auto& count : kCommCounts<uint64_t>) {
        EXPECT_EQ(record.*count.member, value) << count.name;
        EXPECT_EQ(json.at(count.name), value) << count.name;
        EXPECT_EQ(total.*count.member, count.stays ? 2 * value : 0) << count.name;
        ++value;
    }
    stats.count_place(true);
    stats.count_place(false);
    EXPECT_EQ(stats.snapshot().placed_calls, record.placed_calls + 1);
    EXPECT_EQ(stats.snapshot().unplaced_calls, record.unplaced_calls + 1);
}

TEST(Summary, says_what_was_saved_in_at_most_five_lines) {
    const auto lines = summary_lines(
        process(),
        {comm({key("int4:block=128", 1000), key("native", 30, "below min_bytes"),
               key("native", 4, "op broadcast"), key("native", 1, "dtype i64"), key("int8", 0)})},
        "/tmp/r.jsonl");
    ASSERT_EQ(lines.size(), 4u);
    EXPECT_EQ(lines[0],
              "rank 0 compressed 1000 of its 1035 calls (policy p.toml) with int4:block=128");
    EXPECT_EQ(lines[1], "it sent 732 KiB instead of 5.72 MiB, 8.00 times fewer bytes");
    EXPECT_EQ(lines[2],
              "35 calls of 137 KiB stayed native: below min_bytes (30), op broadcast (4), ...");
    EXPECT_EQ(lines[3], "the report is /tmp/r.jsonl");
}

TEST(Summary, says_what_time_that_saves_where_the_links_are_known) {
    const auto sent_at = [](uint32_t mb_s, uint64_t calls, uint64_t wire_bytes) {
        KeyRecord record = key("int8", calls);
        record.wire_bytes = wire_bytes;
        CommRecord one = comm({record});
        one.links.slowest_between_nodes = {PathClass::kNet, mb_s, false};
        return summary_lines(process(), {one}, "")[1];
    };
    EXPECT_EQ(sent_at(125, 1000, 750'000),
              "it sent 732 KiB instead of 5.72 MiB, 8.00 times fewer bytes; at 1 Gbit/s this saves "
              "about 42 ms on the wire");
    EXPECT_EQ(sent_at(1250, 1'000'000, 750'000'000),
              "it sent 715 MiB instead of 5.59 GiB, 8.00 times fewer bytes; at 10 Gbit/s this "
              "saves about 4.2 s on the wire");
    EXPECT_NE(sent_at(1, 1'000'000, 750'000'000).find("about 5250 s"), std::string::npos);
    EXPECT_EQ(sent_at(1250, 1, 7500),
              "it sent 7.32 KiB instead of 5.86 KiB, 1.25 times more bytes");
}

TEST(Summary, says_which_communicators_stayed_native) {
    CommRecord gone = comm({key("int8", 1)}), native = comm({key("native", 2, "few")});
    native.agreement = "native: rank 1: SLIMWIRE_MODE is off";
    gone.communicators = 3;
    const auto lines = summary_lines(process(), {gone, native}, "");
    ASSERT_EQ(lines.size(), 4u);
    EXPECT_EQ(lines[3], "1 of its 4 communicators stayed native: rank 1: SLIMWIRE_MODE is off (1)");
}

// Buckets of many sizes are one reason, not one each.
TEST(Summary, reasons_that_differ_in_their_number_are_one) {
    const auto lines =
        summary_lines(process(),
                      {comm({key("native", 5, "op broadcast"), key("native", 3, "400 bytes: few"),
                             key("native", 1, "60000 bytes: few"), key("native", 2, "8 bytes: few"),
                             key("native", 4, "9 ranks"), key("int8", 1)})},
                      "");
    EXPECT_EQ(lines[2],
              "15 calls of 58.6 KiB stayed native: 8 to 60000 bytes: few (6), op broadcast (5), "
              "...");
}

TEST(Summary, names_what_went_wrong_with_calls) {
    CommRecord record = comm({key("topk", 30), key("int8", 5)});
    record.keys[0].lacks_feedback = true;
    record.missed_masks = 28;
    EXPECT_EQ(summary_lines(process(), {record}, "")[0],
              "rank 0 compressed 35 of its 35 calls (policy p.toml) with topk (30), int8 (5)");
    EXPECT_EQ(
        summary_lines(process(), {record}, "")[1],
        "it sent 25.6 KiB instead of 205 KiB, 8.00 times fewer bytes; 28 gradients came as zeros "
        "for "
        "want of their masks; 30 calls went without the error feedback that their codec needs");
    const Json json = report_parsed(report_lines(process(), {record}))[2];
    EXPECT_EQ(json.at("lacks_feedback"), true);
}

KeyRecord native_of(const char* rule, uint64_t calls, const char* reason, const char* remedy) {
    KeyRecord record = key("native", calls, reason);
    record.rule = rule;
    record.remedy = remedy;
    return record;
}

// Of all communicators together; the reasons of most calls, and the remedy of most bytes: of
// headers that say how long messages are there are as many as of these.
TEST(IdleRules, are_those_with_a_codec_of_which_every_call_is_native) {
    KeyRecord used = key("int4", 1), prepared = key("int4", 0);
    used.rule = "used";
    prepared.rule = "idle";
    KeyRecord headers = native_of("idle", 20, "whole numbers", "floats");
    headers.input_bytes = 20 * 24;
    const auto idle =
        idle_rules({comm({native_of("used", 7, "small", "a smaller min_bytes"), prepared,
                          native_of("idle", 3, "under stream capture", "calls outside graphs"),
                          headers, native_of("idle", 0, "never", "nothing"),
                          native_of("says", 9, "says native", nullptr)}),
                    comm({used, native_of("idle", 8, "small", "a smaller min_bytes")})});
    ASSERT_EQ(idle.size(), 1u);
    EXPECT_EQ(idle[0].rule, "idle");
    EXPECT_EQ(
        idle[0].text,
        "rule 'idle' compressed none of its 31 calls, input 43.4 KiB, why: whole numbers (20), "
        "small (8), ...; what would change it: a smaller min_bytes");
    KeyRecord observed = shadowed("int4", 4);
    observed.rule = "idle";
    EXPECT_TRUE(idle_rules({comm({observed, native_of("idle", 3, "small", "less")})}).empty());
}

TEST(Summary, only_when_there_is_something_to_say) {
    ProcessRecord idle = process();
    idle.info.active = false;
    EXPECT_TRUE(summary_lines(idle, {comm({key("native", 9)})}, "").empty());
    EXPECT_FALSE(summary_lines(idle, {comm({key("int8", 1)})}, "").empty());
    const auto active = summary_lines(process(), {comm({key("native", 9, "below min_bytes")})}, "");
    ASSERT_EQ(active.size(), 2u);
    EXPECT_EQ(active[0], "rank 0 compressed none of its 9 calls (policy p.toml)");
    EXPECT_EQ(summary_lines(process(), {}, "")[0],
              "rank 0 made no calls that slimwire looks at (policy p.toml)");
}

TEST(Summary, sizes_are_readable) {
    EXPECT_EQ(format_bytes(0), "0 B");
    EXPECT_EQ(format_bytes(1023), "1023 B");
    EXPECT_EQ(format_bytes(1024), "1.00 KiB");
    EXPECT_EQ(format_bytes(15 * 1024), "15.0 KiB");
    EXPECT_EQ(format_bytes(150ull << 30), "150 GiB");
}

}  // namespace
}  // namespace slimwire
