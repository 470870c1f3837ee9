#include "tests/e2e/conformance/rules.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace conformance {
namespace {

[[noreturn]] void refuse(const char* what, const std::string& name) {
    std::fprintf(stderr, "unknown %s '%s'\n", what, name.c_str());
    std::exit(2);
}

std::vector<std::string> words(const std::string& list) {
    std::vector<std::string> parts;
    for (size_t begin = 0; begin <= list.size();) {
        const size_t end = std::min(list.find(',', begin), list.size());
        parts.push_back(list.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

std::vector<Kind> kinds_of(const std::string& list) {
    struct Row {
        const char* name;
        std::vector<Kind> kinds;
    };
    static const Row kRows[] = {
        {"allreduce", {Kind::kAllReduce}},
        {"reducescatter", {Kind::kReduceScatter}},
        {"reduce", {Kind::kReduce}},
        {"allgather", {Kind::kAllGather}},
        {"broadcast", {Kind::kBroadcast, Kind::kBcast}},
        {"alltoall", {Kind::kAllToAll}},
        {"sendrecv", {Kind::kSendRecv}},
        {"gather", {Kind::kGather}},
        {"scatter", {Kind::kScatter}},
    };
    std::vector<Kind> kinds;
    for (const std::string& word : words(list)) {
        const auto* const row = std::find_if(std::begin(kRows), std::end(kRows),
                                             [&](const Row& one) { return word == one.name; });
        if (row == std::end(kRows)) {
            refuse("operation", word);
        }
        kinds.insert(kinds.end(), row->kinds.begin(), row->kinds.end());
    }
    return kinds;
}

std::vector<ncclDataType_t> types_of(const std::string& list) {
    std::vector<ncclDataType_t> types;
    for (const std::string& word : words(list)) {
        if (word == "f32") {
            types.push_back(ncclFloat32);
        } else if (word == "f16") {
            types.push_back(ncclFloat16);
        } else if (word == "bf16") {
            types.push_back(ncclBfloat16);
        } else {
            refuse("type", word);
        }
    }
    return types;
}

// The number behind "KEY=" in a codec's options; 0 where there is none.
double number_of(const std::string& spec, const std::string& key) {
    const size_t at = std::min(spec.find(':' + key + '='), spec.find(',' + key + '='));
    return at == std::string::npos ? 0 : std::strtod(spec.c_str() + at + key.size() + 2, nullptr);
}

// Relative error of a code: half a step, or a whole one when rounded stochastically, the scale
// being rounded up to bf16 (2^-7). A rotation of 64 elements may grow its largest by as much.
void set_codec(const std::string& spec, Codec* codec) {
    const double up = (1 + 0x1p-7) * (1 + 0x1p-16);
    const std::string name = spec.substr(0, spec.find(':'));
    const auto has = [&](const char* text) { return spec.find(text) != std::string::npos; };
    const auto count = [&](const char* key) { return static_cast<size_t>(number_of(spec, key)); };
    codec->any = name != "native";
    codec->block = name == "blocktopk" ? 1 : std::max<size_t>(count("block"), 1);
    if (name == "int8" || has("values=int8")) {
        codec->error = 0.5 / 127 * up;
    } else if (name == "int4") {
        codec->error = 0.5 / 7 * up;
    } else if (name == "int2") {
        codec->error = 0.5 * up;
    } else if (name == "fp8e4m3") {
        codec->error = 1.0 / 28 * up;
    } else if (name == "bf16" || name == "fp16") {
        codec->error = name == "bf16" ? 0x1p-8 : 0x1p-11;
        codec->float32_only = true;
    } else if (codec->any && name != "topk" && name != "threshold" && name != "blocktopk" &&
               name != "rowtopk" && name != "randomk") {
        refuse("codec", spec);
    }
    codec->stochastic |= name == "randomk" || has("rounding=stochastic");
    codec->error *= has("rounding=stochastic") ? 2 : 1;
    codec->error *= std::max(number_of(spec, "rotate"), 1.0);
    codec->fraction = static_cast<double>(static_cast<float>(number_of(spec, "fraction")));
    codec->threshold = static_cast<double>(static_cast<float>(number_of(spec, "threshold")));
    if (name == "topk") {
        codec->selection = Selection::kLargest;
    } else if (name == "threshold") {
        codec->selection = Selection::kThreshold;
    } else if (name == "blocktopk" || name == "rowtopk") {
        codec->selection = Selection::kGroups;
        codec->group = count(name == "blocktopk" ? "block" : "row");
        codec->kept = count("kept");
        codec->fraction = static_cast<double>(codec->kept) / static_cast<double>(codec->group);
    } else if (name == "randomk") {
        codec->selection = Selection::kRuns;
    }
}

bool takes(const Codec& rule, const Call& call, int ranks) {
    const size_t bytes =
        std::max(call.input_elems(ranks), call.output_elems(ranks)) * facts_of(call.type).bytes;
    const auto in = [](const auto& list, auto value) {
        return list.empty() || std::find(list.begin(), list.end(), value) != list.end();
    };
    return in(rule.kinds, call.kind) && in(rule.types, call.type) && bytes >= rule.bytes_from &&
           (rule.bytes_until == 0 || bytes <= rule.bytes_until);
}

}  // namespace

bool Rules::take(const std::string& option, const std::string& value) {
    if (rules_.empty() || option == "--rule") {
        rules_.emplace_back();
    }
    Codec& rule = rules_.back();
    const size_t number = std::strtoull(value.c_str(), nullptr, 10);
    if (option == "--op") {
        rule.kinds = kinds_of(value);
    } else if (option == "--dtype") {
        rule.types = types_of(value);
    } else if (option == "--from") {
        rule.bytes_from = number;
    } else if (option == "--until") {
        rule.bytes_until = number;
    } else if (option == "--codec") {
        set_codec(value, &rule);
    } else if (option == "--min-bytes") {
        rule.min_bytes = number;
    } else if (option == "--feedback") {
        rule.feedback = number != 0;
        rule.stochastic |= rule.feedback;
    } else if (option == "--slice-bytes") {
        rule.slice_bytes = number;
    } else if (option == "--two-shot") {
        rule.two_shot = number != 0;
    } else if (option == "--nodes") {
        rule.nodes = number != 0;
    } else if (option == "--intra") {
        Codec inner;
        set_codec(value, &inner);
        rule.intra_error = inner.error;
        rule.intra_fraction = inner.share();
        rule.threshold = std::max(rule.threshold, inner.threshold);
    } else {
        return option == "--rule";
    }
    return true;
}

const Codec& Rules::of(const Call& call, int ranks) const {
    static const Codec kNone;
    for (const Codec& rule : rules_) {
        if (takes(rule, call, ranks)) {
            return rule;
        }
    }
    return kNone;
}

}  // namespace conformance
