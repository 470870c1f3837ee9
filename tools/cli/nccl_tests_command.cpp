#include "tools/cli/nccl_tests_command.h"

#include <fmt/core.h>

#include <filesystem>

namespace slimwire::cli {
namespace {

namespace fs = std::filesystem;

const std::vector<NcclTestsProgram>& programs() {
    // Not alltoallv_perf: its messages differ in size, so no row's calls could be told in a report.
    // Releases before NCCL 2.28 make the rooted and all-to-all ones of sends and receives.
    static const std::vector<NcclTestsProgram> kPrograms = {
        {"all_reduce_perf", "allreduce", {Op::kAllReduce}, false},
        {"reduce_scatter_perf", "reducescatter", {Op::kReduceScatter}, false},
        {"all_gather_perf", "allgather", {Op::kAllGather}, false},
        {"alltoall_perf", "alltoall,send", {Op::kAllToAll, Op::kSend}, false},
        {"broadcast_perf", "broadcast", {Op::kBroadcast}, false},
        {"reduce_perf", "reduce", {Op::kReduce}, false},
        {"sendrecv_perf", "send", {Op::kSend}, false},
        {"gather_perf", "gather,send", {Op::kGather, Op::kSend}, false},
        {"scatter_perf", "scatter,send", {Op::kScatter, Op::kSend}, false},
        {"hypercube_perf", "send", {Op::kSend}, true},
    };
    return kPrograms;
}

}  // namespace

const NcclTestsProgram* find_nccl_tests_program(const std::string& path) {
    const std::string name = fs::path(path).filename().string();
    for (const NcclTestsProgram& program : programs()) {
        const std::string known = program.name;
        if (name == known || name.rfind(known + "_", 0) == 0) {
            return &program;
        }
    }
    return nullptr;
}

Result<NcclTestsCommand> split_nccl_tests_command(const std::vector<std::string>& words) {
    NcclTestsCommand command;
    size_t at = 0;
    for (; at < words.size() && find_nccl_tests_program(words[at]) == nullptr; ++at) {
        command.prefix.push_back(words[at]);
    }
    for (; at < words.size() && find_nccl_tests_program(words[at]) != nullptr; ++at) {
        command.programs.push_back(words[at]);
    }
    command.arguments.assign(words.begin() + static_cast<std::ptrdiff_t>(at), words.end());
    if (command.programs.empty()) {
        std::string names;
        for (const NcclTestsProgram& program : programs()) {
            names += fmt::format("{}{}", names.empty() ? "" : ", ", program.name);
        }
        return Status(
            Code::kInvalidArgument,
            fmt::format("{}; accepted: {}",
                        words.empty() ? "no program; put it behind --"
                                      : "no program of nccl-tests in '" + words.front() + " ...'",
                        names));
    }
    return command;
}

std::string argument_value(const std::vector<std::string>& arguments,
                           char letter,
                           const std::string& name) {
    std::string value;
    const std::string brief = {'-', letter};
    for (size_t i = 0; i < arguments.size(); ++i) {
        const std::string& word = arguments[i];
        if (word == brief || word == "--" + name) {
            value = i + 1 < arguments.size() ? arguments[++i] : "";
        } else if (word.rfind("--" + name + "=", 0) == 0) {
            value = word.substr(name.size() + 3);
        } else if (word.rfind(brief, 0) == 0) {
            value = word.substr(2);
        }
    }
    return value;
}

std::vector<std::string> with_argument(const std::vector<std::string>& arguments,
                                       char letter,
                                       const std::string& name,
                                       const std::string& value) {
    std::vector<std::string> result;
    const std::string brief = {'-', letter};
    for (size_t i = 0; i < arguments.size(); ++i) {
        const std::string& word = arguments[i];
        if (word == brief || word == "--" + name) {
            ++i;
        } else if (word.rfind("--" + name + "=", 0) != 0 && word.rfind(brief, 0) != 0) {
            result.push_back(word);
        }
    }
    result.push_back(brief);
    result.push_back(value);
    return result;
}

}  // namespace slimwire::cli
