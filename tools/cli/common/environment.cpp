#include "tools/cli/common/environment.h"

#include <unistd.h>

#include <algorithm>
#include <initializer_list>
#include <system_error>

namespace slimwire::cli {
namespace {

// `text` unchanged behind `item`, unless it names `item` too: then without it. An empty element
// means the working folder to the loader, so none is added or lost.
std::string in_front(const std::string& item,
                     const std::string& text,
                     std::string_view separators) {
    if (text.empty()) {
        return item;
    }
    const std::vector<std::string> items = split_list(text, separators);
    if (std::find(items.begin(), items.end(), item) == items.end()) {
        return item + ':' + text;
    }
    std::string joined = item;
    for (const std::string& other : items) {
        if (other != item) {
            joined += ':' + other;
        }
    }
    return joined;
}

}  // namespace

std::vector<std::string> split_list(std::string_view text, std::string_view separators) {
    std::vector<std::string> items;
    size_t begin = 0;
    while (begin <= text.size()) {
        const size_t end = std::min(text.find_first_of(separators, begin), text.size());
        if (end > begin) {
            items.emplace_back(text.substr(begin, end - begin));
        }
        begin = end + 1;
    }
    return items;
}

Environment Environment::current() {
    Environment result;
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
        const std::string_view line = *entry;
        const size_t equals = line.find('=');
        if (equals != std::string_view::npos && equals > 0) {
            result.values_.emplace(line.substr(0, equals), line.substr(equals + 1));
        }
    }
    return result;
}

const char* Environment::get(const std::string& name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? nullptr : found->second.c_str();
}

std::string Environment::text(const std::string& name) const {
    const char* const value = get(name);
    return value != nullptr ? value : "";
}

void Environment::prepend(const std::string& name, const std::string& item) {
    std::string& value = values_[name];
    value = in_front(item, value, ":");
}

void Environment::prepend_preload(const std::string& library) {
    std::string& value = values_["LD_PRELOAD"];
    value = in_front(library, value, ": ");
}

void Environment::edit(const std::string& name,
                       std::string_view separators,
                       const std::function<std::string(const std::string&)>& kept_of) {
    std::string joined;
    bool changed = false;
    for (const std::string& item : split_list(text(name), separators)) {
        const std::string kept = kept_of(item);
        changed = changed || kept != item;
        joined += (joined.empty() || kept.empty() ? "" : ":") + kept;
    }
    if (changed && joined.empty()) {
        unset(name);
    } else if (changed) {
        set(name, joined);
    }
}

std::vector<char*> Environment::pointers() {
    lines_.clear();
    for (const auto& [name, value] : values_) {
        lines_.push_back(name + "=" + value);
    }
    return pointers_to(&lines_);
}

std::vector<char*> pointers_to(std::vector<std::string>* words) {
    std::vector<char*> pointers;
    for (std::string& word : *words) {
        pointers.push_back(word.data());
    }
    pointers.push_back(nullptr);
    return pointers;
}

namespace {

namespace fs = std::filesystem;

// The first of `candidates` (relative to `base`) that holds `file`, or is it when `file` is empty.
fs::path first_with(const fs::path& base,
                    std::initializer_list<const char*> candidates,
                    const char* file) {
    for (const char* candidate : candidates) {
        const fs::path folder = (base / candidate).lexically_normal();
        std::error_code error;
        if (fs::exists(*file != '\0' ? folder / file : folder, error)) {
            return folder;
        }
    }
    return {};
}

// A library of ours in its folder of the build tree or in an installation's; empty: not there.
fs::path installed_library(const fs::path& bin, const char* build_folder, const char* name) {
    const fs::path folder = first_with(
        bin,
        {build_folder, "../lib", "../lib/x86_64-linux-gnu", "../lib/aarch64-linux-gnu", "../lib64"},
        name);
    return folder.empty() ? fs::path() : folder / name;
}

}  // namespace

Installation find_installation(const fs::path& executable) {
    Installation found;
    found.executable = executable;
    const fs::path bin = executable.parent_path();
    found.library = installed_library(bin, "../plugin", "libslimwire.so");
    found.audit = installed_library(bin, "../plugin", "libslimwire-audit.so");
    found.net_plugin = installed_library(bin, "../plugin/net", "libnccl-net-slimwire.so");
    found.dropin = first_with(
        bin,
        {"../plugin/dropin", "../lib/slimwire/dropin", "../lib/x86_64-linux-gnu/slimwire/dropin",
         "../lib/aarch64-linux-gnu/slimwire/dropin", "../lib64/slimwire/dropin"},
        "libnccl.so.2");
    found.emulator = first_with(bin, {"emulator", "../lib/slimwire/emulator"}, "libnccl.so.2");
    found.helpers = first_with(bin, {".", "../libexec/slimwire"}, "slimwire-bench-worker");
    found.stub_nccl =
        first_with(bin, {"cli/stub_nccl", "../lib/slimwire/stub_nccl"}, "libnccl.so.2");
    return found;
}

Installation find_installation() {
    std::error_code error;
    fs::path self = fs::read_symlink("/proc/self/exe", error);
    return find_installation(error ? fs::path("slimwire") : self);
}

}  // namespace slimwire::cli
