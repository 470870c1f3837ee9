// Rules for series (conformance/series.h): sparsifiers with error feedback for the series'
// messages, 64 KiB and more, by every algorithm that takes them; a codec of blocks for the others,
// which are smaller (--max-count 8000). Lossy all-gathers and broadcasts only where a rule names
// them. A row becomes a rule of the policy and the arguments that tell the program of it
// (conformance/rules.h).
#pragma once

#include <algorithm>
#include <span>
#include <sstream>
#include <string>
#include <string_view>

namespace slimwire::test {

inline constexpr const char* kSeriesFrom = "65536";

struct SeriesRule {
    const char* name;
    const char* ops = "";     // separated by commas, as the program names them; empty: all
    const char* dtypes = "";  // the same
    const char* codec;
    const char* intra_codec = "";
    const char* told;            // the codecs as the program's arguments
    const char* algorithm = "";  // empty: slimwire's choice
    int start_step = 0;
};

inline constexpr const char* kSums = "allreduce,reduce,reducescatter";

inline constexpr SeriesRule kSeriesLargest[] = {
    {.name = "gathered",
     .ops = "allreduce",
     .dtypes = "f16",
     .codec = "topk:fraction=0.4",
     .told = "topk --fraction 0.4",
     .algorithm = "gather"},
    {.name = "coded",
     .dtypes = "bf16",
     .codec = "topk:fraction=0.5,values=int8",
     .told = "topk_int8 --fraction 0.5",
     .start_step = 1},
    {.name = "rest", .codec = "topk:fraction=0.4", .told = "topk --fraction 0.4"},
};

inline constexpr SeriesRule kSeriesThreshold[] = {
    {.name = "gathered",
     .ops = "allreduce",
     .dtypes = "f32",
     .codec = "threshold:threshold=0.005,fraction=0.4",
     .told = "threshold --threshold 0.005 --fraction 0.4 --slice-bytes 32768",
     .algorithm = "gather"},
    {.name = "coded",
     .dtypes = "f16",
     .codec = "threshold:threshold=0.01,fraction=0.5,values=int8",
     .told = "threshold_int8 --threshold 0.01 --fraction 0.5 --slice-bytes 32768"},
    {.name = "rest",
     .codec = "threshold:threshold=0.005,fraction=0.4",
     .told = "threshold --threshold 0.005 --fraction 0.4 --slice-bytes 32768",
     .start_step = 2},
};

inline constexpr SeriesRule kSeriesGroups[] = {
    {.name = "coded",
     .dtypes = "f16,bf16",
     .codec = "blocktopk:block=64,kept=24,values=int8",
     .told = "blocktopk_int8 --group 64 --kept 24"},
    {.name = "rows",
     .ops = "allreduce,reduce,allgather,alltoall,sendrecv",
     .codec = "rowtopk:row=512,kept=171",
     .told = "rowtopk --group 512 --kept 171"},
    {.name = "rest",
     .codec = "blocktopk:block=64,kept=24",
     .told = "blocktopk --group 64 --kept 24"},
};

inline constexpr SeriesRule kSeriesRuns[] = {
    {.name = "gathered",
     .ops = "allreduce",
     .dtypes = "bf16",
     .codec = "randomk:fraction=0.5",
     .told = "randomk --fraction 0.5 --slice-bytes 65536",
     .algorithm = "gather"},
    {.name = "summed",
     .ops = kSums,
     .dtypes = "f32",
     .codec = "randomk:fraction=0.5",
     .told = "randomk --fraction 0.5 --slice-bytes 65536",
     .algorithm = "summable"},
    {.name = "rest",
     .codec = "randomk:fraction=0.5",
     .told = "randomk --fraction 0.5 --slice-bytes 65536"},
};

// Nodes of several ranks, with sparsifiers between them, inside them, and both.
inline constexpr SeriesRule kSeriesNodes[] = {
    {.name = "both",
     .ops = kSums,
     .dtypes = "f32",
     .codec = "topk:fraction=0.4",
     .intra_codec = "blocktopk:block=64,kept=24",
     .told = "topk --fraction 0.4 --intra blocktopk --intra-fraction 0.375",
     .algorithm = "hierarchical"},
    {.name = "coded_inside",
     .ops = kSums,
     .dtypes = "bf16",
     .codec = "threshold:threshold=0.005,fraction=0.4",
     .intra_codec = "int8:block=64",
     .told = "threshold --threshold 0.005 --fraction 0.4 --intra int8",
     .algorithm = "hierarchical"},
    {.name = "between",
     .ops = kSums,
     .codec = "blocktopk:block=64,kept=24",
     .told = "blocktopk --group 64 --kept 24",
     .algorithm = "hierarchical"},
    {.name = "rest", .codec = "rowtopk:row=512,kept=171", .told = "rowtopk --group 512 --kept 171"},
};

inline constexpr SeriesRule kSeriesUnevenNodes[] = {
    {.name = "runs",
     .ops = kSums,
     .dtypes = "f32",
     .codec = "randomk:fraction=0.5",
     .intra_codec = "rowtopk:row=512,kept=256",
     .told = "randomk --fraction 0.5 --intra rowtopk --intra-fraction 0.5",
     .algorithm = "hierarchical"},
    {.name = "threshold_inside",
     .ops = kSums,
     .dtypes = "bf16",
     .codec = "int4:block=64",
     .intra_codec = "threshold:threshold=0.005,fraction=0.5",
     .told = "int4 --block 64 --threshold 0.005 --intra threshold --intra-fraction 0.5",
     .algorithm = "hierarchical"},
    {.name = "runs_inside",
     .ops = kSums,
     .codec = "topk:fraction=0.5,values=int8",
     .intra_codec = "randomk:fraction=0.5",
     .told = "topk_int8 --fraction 0.5 --intra randomk --intra-fraction 0.5",
     .algorithm = "hierarchical"},
    {.name = "rest", .codec = "rowtopk:row=512,kept=256", .told = "rowtopk --group 512 --kept 256"},
};

// "a,b" as TOML: ["a", "b"]. What the program plays as one, a policy names as two.
inline std::string toml_list(std::string_view words) {
    std::string list;
    for (size_t begin = 0; begin <= words.size();) {
        const size_t end = std::min(words.find(',', begin), words.size());
        const std::string_view word = words.substr(begin, end - begin);
        list += list.empty() ? "[" : ", ";
        list += word == "sendrecv" ? "\"send\", \"recv\"" : '"' + std::string(word) + '"';
        begin = end + 1;
    }
    return list + "]";
}

inline std::string series_policy(std::span<const SeriesRule> rules) {
    std::ostringstream text;
    text << "version = 1\n";
    for (const SeriesRule& rule : rules) {
        const char* const all =
            "allreduce,reducescatter,reduce,allgather,broadcast,alltoall,gather,scatter,sendrecv";
        text << "[[rule]]\nname = \"" << rule.name
             << "\"\nmatch = { op = " << toml_list(*rule.ops != 0 ? rule.ops : all);
        if (*rule.dtypes != 0) {
            text << ", dtype = " << toml_list(rule.dtypes);
        }
        text << ", bytes = \"" << kSeriesFrom << "..\" }\ncodec = \"" << rule.codec << "\"\n";
        if (*rule.intra_codec != 0) {
            text << "intra_codec = \"" << rule.intra_codec << "\"\n";
        }
        if (*rule.algorithm != 0) {
            text << "algorithm = \"" << rule.algorithm << "\"\n";
        }
        text << "error_feedback = \"ef14\"\n";
        if (rule.start_step > 0) {
            text << "start_step = " << rule.start_step << "\n";
        }
    }
    text << "[[rule]]\nname = \"small\"\ncodec = \"int8:block=64\"\nmin_bytes = 2048\n";
    return text.str();
}

inline std::string series_arguments(std::span<const SeriesRule> rules) {
    std::ostringstream text;
    for (const SeriesRule& rule : rules) {
        const std::string_view algorithm = rule.algorithm;
        text << "--rule " << rule.name;
        if (*rule.ops != 0) {
            text << " --op " << rule.ops;
        }
        if (*rule.dtypes != 0) {
            text << " --dtype " << rule.dtypes;
        }
        text << " --from " << kSeriesFrom << " --codec " << rule.told;
        if (algorithm == "gather" || algorithm == "summable") {
            text << " --two-shot 0";
        } else if (algorithm == "hierarchical") {
            text << " --nodes 1";
        }
        text << " --feedback 1 ";
    }
    text << "--rule small --codec int8 --block 64 --min-bytes 2048";
    return text.str();
}

}  // namespace slimwire::test
