#include "tools/cli/report/report_merge.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>
#include <tuple>

#include "collectives/policy/names.h"
#include "tools/cli/common/commands.h"
#include "tools/cli/report/record_files.h"

namespace slimwire::cli {
namespace {

constexpr int kMostRanks = 1 << 20;
constexpr int kMostNamed = 16;
constexpr std::string_view kReportRecords[] = {"process", "comm", "key", "net", "net_peer"};
constexpr std::string_view kTraceRecords[] = {"trace",      "trace_comm", "call",     "group",
                                              "time",       "sample",     "decision", "rehearsal",
                                              "codec_time", "training",   "dropped",  "rotated"};

std::string ranks_text(const std::set<int>& ranks) {
    std::string text = ranks.size() == 1 ? "rank" : "ranks";
    int named = 0;
    for (const int rank : ranks) {
        if (++named > kMostNamed) {
            return text + fmt::format(" and {} more", ranks.size() - kMostNamed);
        }
        text += fmt::format("{} {}", rank == *ranks.begin() ? "" : ",", rank);
    }
    return text;
}

// What the records of one plan have in common on all ranks.
using KeyIdentity = std::tuple<std::string,
                               std::string,
                               std::string,
                               std::string,
                               uint64_t,
                               std::string,
                               std::string,
                               std::string,
                               std::string,
                               bool>;

class Merger {
  public:
    Result<std::vector<std::string>> distinct(const std::vector<std::string>& files) {
        return distinct_files(files, &report_.notes);
    }
    Status add_file(const std::string& path);
    MergedReport finish();

  private:
    Status add_record(const Record& record, const std::string& file);
    void add_process(const Record& record, const std::string& file);
    Status add_comm(const Record& record, const std::string& file);
    void add_key(const Record& record);
    static void add_decisions(const Record& record, MergedKey* key);
    static void compare_decisions(const MergedKey& key, MergedComm* comm);
    void add_peer(const Record& record);
    MergedComm& comm_entry(const Record& record);
    static void find_differences(MergedComm* comm);

    MergedReport report_;
    bool known_ = false;                  // a record of the file that is read
    std::optional<std::string> unknown_;  // the last kind of it that is not
    std::map<std::string, size_t> comm_index_;
    std::map<std::pair<std::string, KeyIdentity>, size_t> key_index_;
    std::map<std::array<std::string, 4>, size_t> peer_index_;
    std::map<std::pair<std::string, int>, std::string> file_of_rank_;
    std::map<std::string, std::set<std::string>> files_of_hash_;
    std::map<std::string, std::set<std::string>> files_of_nccl_, files_of_version_;
};

Status Merger::add_file(const std::string& path) {
    known_ = false;
    unknown_.reset();
    SLIMWIRE_TRY(read_records(path, &report_.notes,
                              [&](const Record& record) { return add_record(record, path); }));
    if (!known_ && unknown_) {
        return invalid(
            fmt::format("{}: has records '{}' and none of a report; accepted: files of "
                        "SLIMWIRE_REPORT",
                        path, *unknown_));
    }
    return {};
}

Status Merger::add_record(const Record& record, const std::string& file) {
    const std::string kind = record.value("record", "");
    if (std::find(std::begin(kReportRecords), std::end(kReportRecords), kind) !=
        std::end(kReportRecords)) {
        known_ = true;
    } else {
        unknown_ = kind;
    }
    if (kind == "process") {
        add_process(record, file);
    } else if (kind == "comm") {
        return add_comm(record, file);
    } else if (kind == "key") {
        add_key(record);
    } else if (kind == "net") {
        report_.throttled = report_.throttled || record.value("throttled", false);
    } else if (kind == "net_peer") {
        add_peer(record);
    } else if (const auto* const all = std::end(kTraceRecords);
               std::find(std::begin(kTraceRecords), all, kind) != all) {
        return invalid(
            fmt::format("a record '{}' of a trace; accepted: files of SLIMWIRE_REPORT (slimwire "
                        "report takes traces, too, with their first lines)",
                        kind));
    }
    return {};
}

void Merger::add_process(const Record& record, const std::string& file) {
    ++report_.processes;
    report_.uptime_us = std::max(report_.uptime_us, record.value("uptime_us", 0.0));
    files_of_hash_[record.value("config_hash", "")].insert(file);
    if (const std::string version = record.value("version", ""); !version.empty()) {
        files_of_version_[version].insert(file);
    }
    const Record nccl = record.value("nccl_version", Record());
    if (!nccl.is_null()) {
        files_of_nccl_[nccl.is_string() ? nccl.get<std::string>() : nccl.dump()].insert(file);
    }
}

MergedComm& Merger::comm_entry(const Record& record) {
    const std::string name = record.at("comm").get<std::string>();
    const auto [found, inserted] = comm_index_.try_emplace(name, report_.comms.size());
    if (inserted) {
        report_.comms.emplace_back().comm = name;
    }
    return report_.comms[found->second];
}

// What reports say of a communicator's links (collectives/SCHEMA.md).
CommLinks links_of(const Record& json, const MergedComm& comm) {
    const auto link = [&](const char* name) {
        RankLink read;
        const Record& told = json.at(name);
        const std::string word = told.value("class", "");
        for (int i = 0; i <= static_cast<int>(PathClass::kNone); ++i) {
            const auto path_class = static_cast<PathClass>(i);
            read.path_class = word == path_class_name(path_class) ? path_class : read.path_class;
        }
        read.mb_s = told.value("mb_s", uint32_t{0});
        return read;
    };
    CommLinks links;
    links.shape.ranks = comm.ranks;
    links.shape.nodes = comm.nodes;
    links.nv_domains = json.value("nv_domains", 0);
    links.rails = json.value("rails", 0);
    links.rails_aligned = json.value("rails_aligned", false);
    links.slowest_in_node = link("slowest_in_node");
    links.slowest_between_nodes = link("slowest_between_nodes");
    return links;
}

CostThreshold threshold_of(const Record& json) {
    CostThreshold one;
    one.op = parse_op(json.value("op", "")).value_or(Op::kAllReduce);
    one.dtype = parse_dtype(json.value("dtype", "")).value_or(DType::kFloat32);
    one.codec = json.value("codec", "");
    one.algorithm = json.value("algorithm", "");
    if (const auto bytes = json.find("pays_from_bytes");
        bytes != json.end() && bytes->is_number()) {
        one.pays_from_bytes = bytes->get<uint64_t>();
    }
    return one;
}

Status Merger::add_comm(const Record& record, const std::string& file) {
    MergedComm& comm = comm_entry(record);
    const int rank = record.at("rank").get<int>();
    const auto ranks = record.at("ranks").get<int64_t>();
    if (ranks < 0 || ranks > kMostRanks) {
        return invalid(fmt::format("{} ranks; accepted: at most {}", ranks, kMostRanks));
    }
    if (rank < 0 || rank >= ranks) {
        return invalid(fmt::format("rank {} of {}", rank, ranks));
    }
    comm.ranks = std::max(comm.ranks, static_cast<int>(ranks));
    comm.nodes = std::max(comm.nodes, record.value("nodes", 0));
    comm.ranks_seen.insert(rank);
    comm.agreements[record.value("agreement", "")].insert(rank);
    for (const auto& [name, member, stays, over_ranks] : kCommCounts<uint64_t>) {
        const uint64_t before = comm.*member, added = record.value(name, uint64_t{0});
        switch (over_ranks) {
            case OverRanks::kNot:
                break;
            case OverRanks::kSum:
                comm.*member = before + added;
                break;
            case OverRanks::kMost:
                comm.*member = std::max(before, added);
                break;
        }
    }
    if (const auto links = record.find("links"); links != record.end() && links->is_object()) {
        comm.links = links_of(*links, comm);
    }
    if (const auto all = record.find("thresholds"); all != record.end() && all->is_array()) {
        comm.thresholds.clear();
        for (const Record& one : *all) {
            comm.thresholds.push_back(threshold_of(one));
        }
    }
    const auto [earlier, inserted] = file_of_rank_.try_emplace({comm.comm, rank}, file);
    if (!inserted && comm.comm != "folded") {
        comm.differences.push_back(
            fmt::format("rank {} is reported twice, by {} and {}: files of different runs?", rank,
                        earlier->second, file));
    }
    return {};
}

void Merger::add_key(const Record& record) {
    MergedComm& comm = comm_entry(record);
    MergedKey key;
    key.op = record.at("op").get<std::string>();
    key.direction = record.value("direction", "");
    key.dtype = record.value("dtype", "");
    key.redop = record.value("redop", "none");
    key.count = record.value("count", uint64_t{0});
    key.rule = record.value("rule", "");
    key.codec = record.value("codec", "native");
    key.algorithm = record.value("algorithm", "native");
    key.reason = record.value("reason", "");
    key.remedy = record.value("remedy", "");
    key.folded = record.value("folded", false);
    key.shadow_codec = record.value("shadow_codec", "");
    key.shadow_algorithm = record.value("shadow_algorithm", "");
    const KeyIdentity identity{key.op,   key.direction, key.dtype,     key.redop,  key.count,
                               key.rule, key.codec,     key.algorithm, key.reason, key.folded};
    const auto [found, inserted] = key_index_.try_emplace({comm.comm, identity}, comm.keys.size());
    if (inserted) {
        comm.keys.push_back(key);
    }
    if (MergedKey& merged = comm.keys[found->second]; merged.shadow_codec.empty()) {
        merged.shadow_codec = key.shadow_codec;  // ranks may differ in their modes
        merged.shadow_algorithm = key.shadow_algorithm;
    }
    const uint64_t calls = record.at("calls").get<uint64_t>();
    for (MergedKey* target : {&comm.keys[found->second], &report_.total}) {
        target->calls += calls;
        target->input_bytes += record.value("input_bytes", uint64_t{0});
        target->wire_bytes += record.value("wire_bytes", uint64_t{0});
        target->native_wire_bytes += record.value("native_wire_bytes", uint64_t{0});
        target->timed_calls += record.value("timed_calls", uint64_t{0});
        target->time_us += record.value("time_us", 0.0);
        if (!key.shadow_codec.empty()) {
            target->shadow_calls += calls;
            target->shadow_wire_bytes += record.value("shadow_wire_bytes", uint64_t{0});
            target->shadow_native_bytes += record.value("native_wire_bytes", uint64_t{0});
        }
        if (const auto aims = record.find("aims"); aims != record.end()) {
            target->features.thresholds.add(
                {aims->value("encodings", uint64_t{0}), aims->value("exact", uint64_t{0}),
                 aims->value("moved", uint64_t{0}), aims->value("survivors", uint64_t{0}),
                 aims->value("wanted", uint64_t{0})});
        }
        for (const Record& sample : record.value("owed", Record::array())) {
            auto& [gradient, owed] =
                target->features.residual_norms[sample.value("call", uint64_t{0})];
            gradient += sample.value("gradient_square", 0.0);
            owed += sample.value("owed_square", 0.0);
        }
        target->features.averages = target->features.averages || record.contains("averagings");
        target->features.averagings += record.value("averagings", uint64_t{0});
        target->features.averaging_wire_bytes += record.value("averaging_wire_bytes", uint64_t{0});
        target->features.steps_ahead = target->features.steps_ahead || record.contains("previews");
        target->features.previews += record.value("previews", uint64_t{0});
        const double step_size = record.value("step_size", 0.0);
        target->features.step_size = step_size != 0 ? step_size : target->features.step_size;
        target->wire_is_estimate =
            target->wire_is_estimate || record.value("wire_is_estimate", false);
    }
    add_decisions(record, &comm.keys[found->second]);
    comm.keys[found->second].names.insert(record.value("name", ""));
    comm.keys[found->second].calls_of_rank[record.at("rank").get<int>()] += calls;
}

void Merger::add_decisions(const Record& record, MergedKey* key) {
    const auto tensors = record.find("accordion");
    if (tensors == record.end()) {
        return;
    }
    for (const Record& tensor : *tensors) {
        MergedAccordion& merged = key->features.accordions[{tensor.value("slot", uint32_t{0}),
                                                            tensor.value("ordinal", uint32_t{0})}];
        const auto windows = tensor.value("windows", uint64_t{0});
        merged.hashes[{windows, tensor.value("decisions_hash", "")}].insert(
            record.at("rank").get<int>());
        if (windows < merged.windows) {
            continue;  // of a rank that reported earlier
        }
        merged.windows = windows;
        merged.high_windows = tensor.value("high_windows", uint64_t{0});
        merged.lr_drops = tensor.value("lr_drops", uint64_t{0});
        merged.decisions.clear();
        for (const Record& decision : tensor.value("decisions", Record::array())) {
            merged.decisions += decision.value("high", false) ? 'H' : 'L';
        }
    }
}

void Merger::add_peer(const Record& record) {
    MergedPeer peer;
    peer.direction = record.at("direction").get<std::string>();
    peer.peer = record.at("peer").get<std::string>();
    peer.wire = record.value("wire", "");
    peer.device = record.value("device", "");
    const auto [found, inserted] = peer_index_.try_emplace(
        {peer.direction, peer.peer, peer.wire, peer.device}, report_.peers.size());
    if (inserted) {
        report_.peers.push_back(peer);
    }
    MergedPeer& sum = report_.peers[found->second];
    ++sum.processes;
    for (const auto& [name, count] : kPeerCounts) {
        sum.*count += record.value(name, uint64_t{0});
    }
    sum.timed_raw_us += record.value("timed_raw_us", 0.0);
    sum.timed_coded_us += record.value("timed_coded_us", 0.0);
}

// Ranks that had as many windows of an accordion, and decided differently.
void Merger::compare_decisions(const MergedKey& key, MergedComm* comm) {
    for (const auto& [place, tensor] : key.features.accordions) {
        for (auto one = tensor.hashes.begin(); one != tensor.hashes.end(); ++one) {
            const auto other = std::next(one);
            if (other != tensor.hashes.end() && one->first.first == other->first.first) {
                comm->differences.push_back(fmt::format(
                    "{} {} of {} elements, tensor {}.{}: {} and {} decided differently in {} "
                    "windows of the accordion",
                    key.op, key.dtype, key.count, place.first, place.second,
                    ranks_text(one->second), ranks_text(other->second), one->first.first));
            }
        }
    }
}

void Merger::find_differences(MergedComm* comm) {
    if (comm->comm == "folded") {
        return;
    }
    if (comm->agreements.size() > 1) {
        std::string text = "ranks agreed differently:";
        for (const auto& [agreement, ranks] : comm->agreements) {
            text += fmt::format(" {} '{}';", ranks_text(ranks), agreement);
        }
        text.pop_back();
        comm->differences.push_back(text);
    }
    std::set<int> missing;
    for (int rank = 0; rank < comm->ranks; ++rank) {
        if (comm->ranks_seen.count(rank) == 0) {
            missing.insert(rank);
        }
    }
    if (!missing.empty()) {
        comm->differences.push_back(fmt::format("no report of {}", ranks_text(missing)));
    }
    for (const MergedKey& key : comm->keys) {
        compare_decisions(key, comm);
        // Point-to-point calls differ between ranks by nature, folded ones by chance.
        if (key.op == "send" || key.op == "recv" || key.folded) {
            continue;
        }
        std::map<uint64_t, std::set<int>> by_calls;
        for (const int rank : comm->ranks_seen) {
            const auto found = key.calls_of_rank.find(rank);
            by_calls[found == key.calls_of_rank.end() ? 0 : found->second].insert(rank);
        }
        if (by_calls.size() > 1) {
            std::string text =
                fmt::format("{} {} of {} elements by {}:", key.op, key.dtype, key.count, key.codec);
            for (const auto& [calls, ranks] : by_calls) {
                text += fmt::format(" {} calls on {};", calls, ranks_text(ranks));
            }
            text.pop_back();
            comm->differences.push_back(text);
        }
    }
}

MergedReport Merger::finish() {
    for (MergedComm& comm : report_.comms) {
        find_differences(&comm);
        std::stable_sort(
            comm.keys.begin(), comm.keys.end(),
            [](const MergedKey& a, const MergedKey& b) { return a.input_bytes > b.input_bytes; });
    }
    std::stable_sort(report_.peers.begin(), report_.peers.end(),
                     [](const MergedPeer& a, const MergedPeer& b) {
                         return std::pair(b.direction, a.bytes) > std::pair(a.direction, b.bytes);
                     });
    const auto compare = [this](const char* what, const auto& files_of) {
        if (files_of.size() > 1) {
            std::string text = fmt::format("processes differ in {}:", what);
            for (const auto& [value, files] : files_of) {
                text += fmt::format(" {} in {}{};", value.empty() ? "none" : value, *files.begin(),
                                    files.size() > 1 ? fmt::format(" and {} more", files.size() - 1)
                                                     : std::string());
            }
            text.pop_back();
            report_.differences.push_back(text);
        }
    };
    compare("configuration", files_of_hash_);
    compare("NCCL version", files_of_nccl_);
    compare("slimwire's version", files_of_version_);
    return std::move(report_);
}

}  // namespace

Result<MergedReport> merge_reports(const std::vector<std::string>& files) {
    Merger merger;
    SLIMWIRE_TRY_ASSIGN(const std::vector<std::string> distinct, merger.distinct(files));
    for (const std::string& file : distinct) {
        SLIMWIRE_TRY(merger.add_file(file));
    }
    return merger.finish();
}

namespace {

double ratio_of(uint64_t native, uint64_t wire) {
    return wire == 0 ? 1.0 : static_cast<double>(native) / static_cast<double>(wire);
}

}  // namespace

double wire_ratio(const MergedKey& key) {
    return ratio_of(key.native_wire_bytes, key.wire_bytes);
}

double shadow_ratio(const MergedKey& key) {
    return ratio_of(key.shadow_native_bytes, key.shadow_wire_bytes);
}

}  // namespace slimwire::cli
