// Rules of the conformance test's jobs: a table of them is a policy, and what the program is told
// of that (conformance/rules.h).
#pragma once

#include <algorithm>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace slimwire::test {

struct ConformanceRule {
    const char* name;
    const char* ops = "";     // separated by commas, as the program names them; empty: all
    const char* dtypes = "";  // the same
    const char* codec;
    const char* intra_codec = "";
    const char* algorithm = "";  // empty: slimwire's choice
    const char* feedback = "";
    const char* more = "";    // lines of the policy that change nothing for the program
    int from = 0, until = 0;  // bytes that it matches
    int min_bytes = 0;
};

inline constexpr const char* kSums = "allreduce,reduce,reducescatter";

// By size, type and operation, each with an algorithm of its own.
inline constexpr ConformanceRule kBySize[] = {
    {.name = "middling", .ops = "allreduce,reduce", .codec = "bf16", .from = 4096, .until = 65536},
    {.name = "large",
     .ops = "allreduce",
     .dtypes = "f32",
     .codec = "int8:block=64",
     .algorithm = "gather",
     .from = 65536},
    {.name = "owed",
     .ops = kSums,
     .dtypes = "f16,bf16",
     .codec = "int8:block=64",
     .feedback = "ef14",
     .more = "residual = \"int8\"\nstart_step = 1\n",
     .min_bytes = 8192},
    {.name = "state", .ops = "allgather,broadcast,gather,scatter", .codec = "native"},
    {.name = "messages",
     .ops = "sendrecv,alltoall",
     .dtypes = "f32,bf16",
     .codec = "int4:block=32",
     .algorithm = "direct",
     .from = 2048},
};

// Two nodes of two ranks.
inline constexpr ConformanceRule kByNode[] = {
    {.name = "between_nodes",
     .ops = "allreduce",
     .codec = "int8:block=64",
     .algorithm = "hierarchical",
     .more = "match.scope = \"inter_node\"\n",
     .from = 4096},
    {.name = "owed",
     .ops = "reducescatter",
     .codec = "int4:block=64",
     .feedback = "ema",
     .from = 4096},
    {.name = "rest",
     .ops = "reduce,alltoall,sendrecv",
     .codec = "fp8e4m3:block=64",
     .min_bytes = 4096},
};

// A sparsifier for every algorithm that takes one.
inline constexpr ConformanceRule kSparsifiers[] = {
    {.name = "gathered",
     .ops = "allreduce",
     .dtypes = "f32",
     .codec = "topk:fraction=0.05",
     .algorithm = "gather",
     .min_bytes = 2048},
    {.name = "summed",
     .ops = "allreduce,reduce",
     .codec = "randomk:fraction=0.1",
     .algorithm = "summable",
     .min_bytes = 2048},
    {.name = "scattered",
     .ops = "reducescatter",
     .codec = "blocktopk:block=64,kept=4,values=int8",
     .min_bytes = 2048},
    {.name = "moved", .codec = "threshold:threshold=1.5,fraction=0.2", .min_bytes = 2048},
};

// For series (conformance/series.h): sparsifiers with error feedback for the series' messages, 64
// KiB and more, by every algorithm that takes them; of_series() adds what all have.
inline constexpr ConformanceRule kSeriesLargest[] = {
    {.name = "gathered",
     .ops = "allreduce",
     .dtypes = "f16",
     .codec = "topk:fraction=0.4",
     .algorithm = "gather"},
    {.name = "coded",
     .dtypes = "bf16",
     .codec = "topk:fraction=0.5,values=int8",
     .more = "start_step = 1\n"},
    {.name = "rest", .codec = "topk:fraction=0.4"},
};
inline constexpr ConformanceRule kSeriesThreshold[] = {
    {.name = "gathered",
     .ops = "allreduce",
     .dtypes = "f32",
     .codec = "threshold:threshold=0.005,fraction=0.4",
     .algorithm = "gather"},
    {.name = "coded",
     .dtypes = "f16",
     .codec = "threshold:threshold=0.01,fraction=0.5,values=int8"},
    {.name = "rest", .codec = "threshold:threshold=0.005,fraction=0.4", .more = "start_step = 2\n"},
};
inline constexpr ConformanceRule kSeriesGroups[] = {
    {.name = "coded", .dtypes = "f16,bf16", .codec = "blocktopk:block=64,kept=24,values=int8"},
    {.name = "rows",
     .ops = "allreduce,reduce,allgather,alltoall,sendrecv",
     .codec = "rowtopk:row=512,kept=171"},
    {.name = "rest", .codec = "blocktopk:block=64,kept=24"},
};
inline constexpr ConformanceRule kSeriesRuns[] = {
    {.name = "gathered",
     .ops = "allreduce",
     .dtypes = "bf16",
     .codec = "randomk:fraction=0.5",
     .algorithm = "gather"},
    {.name = "summed",
     .ops = kSums,
     .dtypes = "f32",
     .codec = "randomk:fraction=0.5",
     .algorithm = "summable"},
    {.name = "rest", .codec = "randomk:fraction=0.5"},
};
// Nodes of several ranks, with sparsifiers between them, inside them, and both.
inline constexpr ConformanceRule kSeriesNodes[] = {
    {.name = "both",
     .ops = kSums,
     .dtypes = "f32",
     .codec = "topk:fraction=0.4",
     .intra_codec = "blocktopk:block=64,kept=24",
     .algorithm = "hierarchical"},
    {.name = "coded_inside",
     .ops = kSums,
     .dtypes = "bf16",
     .codec = "threshold:threshold=0.005,fraction=0.4",
     .intra_codec = "int8:block=64",
     .algorithm = "hierarchical"},
    {.name = "between",
     .ops = kSums,
     .codec = "blocktopk:block=64,kept=24",
     .algorithm = "hierarchical"},
    {.name = "rest", .codec = "rowtopk:row=512,kept=171"},
};
inline constexpr ConformanceRule kSeriesUnevenNodes[] = {
    {.name = "runs",
     .ops = kSums,
     .dtypes = "f32",
     .codec = "randomk:fraction=0.5",
     .intra_codec = "rowtopk:row=512,kept=256",
     .algorithm = "hierarchical"},
    {.name = "threshold_inside",
     .ops = kSums,
     .dtypes = "bf16",
     .codec = "int4:block=64",
     .intra_codec = "threshold:threshold=0.005,fraction=0.5",
     .algorithm = "hierarchical"},
    {.name = "runs_inside",
     .ops = kSums,
     .codec = "topk:fraction=0.5,values=int8",
     .intra_codec = "randomk:fraction=0.5",
     .algorithm = "hierarchical"},
    {.name = "rest", .codec = "rowtopk:row=512,kept=256"},
};

// Lossy all-gathers and broadcasts only where a rule names them. Behind the rules a codec of blocks
// for the other messages, which are smaller (--max-count 8000).
inline std::vector<ConformanceRule> of_series(std::span<const ConformanceRule> rules) {
    std::vector<ConformanceRule> all(rules.begin(), rules.end());
    for (ConformanceRule& rule : all) {
        rule.from = 65536;
        rule.feedback = "ef14";
        if (*rule.ops == 0) {
            rule.ops =
                "allreduce,reducescatter,reduce,allgather,broadcast,alltoall,gather,scatter,"
                "sendrecv";
        }
    }
    all.push_back({.name = "small", .codec = "int8:block=64", .min_bytes = 2048});
    return all;
}

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

inline std::string policy_of(std::span<const ConformanceRule> rules) {
    std::ostringstream text;
    text << "version = 1\n";
    for (const ConformanceRule& rule : rules) {
        text << "[[rule]]\nname = \"" << rule.name << "\"\ncodec = \"" << rule.codec << "\"\n"
             << rule.more;
        for (const auto& [key, words] : {std::pair{"op", rule.ops}, {"dtype", rule.dtypes}}) {
            text << (*words != 0 ? std::string("match.") + key + " = " + toml_list(words) + "\n"
                                 : "");
        }
        if (rule.from > 0) {
            text << "match.bytes = \"" << rule.from << ".."
                 << (rule.until > 0 ? std::to_string(rule.until) : "") << "\"\n";
        }
        for (const auto& [key, value] : {std::pair{"intra_codec", rule.intra_codec},
                                         {"algorithm", rule.algorithm},
                                         {"error_feedback", rule.feedback}}) {
            text << (*value != 0 ? std::string(key) + " = \"" + value + "\"\n" : "");
        }
        if (rule.min_bytes > 0) {
            text << "min_bytes = " << rule.min_bytes << "\n";
        }
    }
    return text.str();
}

// The same as arguments of the program, where messages are cut into slices of so many bytes.
inline std::string arguments_of(std::span<const ConformanceRule> rules, int slice_bytes) {
    std::ostringstream text;
    for (const ConformanceRule& rule : rules) {
        const std::string_view algorithm = rule.algorithm;
        text << " --rule " << rule.name;
        for (const auto& [option, value] : {std::pair{"op", rule.ops},
                                            {"dtype", rule.dtypes},
                                            {"codec", rule.codec},
                                            {"intra", rule.intra_codec}}) {
            text << (*value != 0 ? std::string(" --") + option + " " + value : "");
        }
        text << " --from " << rule.from << " --until " << rule.until << " --min-bytes "
             << rule.min_bytes << " --slice-bytes " << slice_bytes << " --feedback "
             << (*rule.feedback != 0) << " --two-shot "
             << (algorithm != "gather" && algorithm != "summable") << " --nodes "
             << (algorithm == "hierarchical");
    }
    return text.str();
}

}  // namespace slimwire::test
