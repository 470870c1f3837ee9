#include "tools/cli/common/environment.h"

#include <unistd.h>

#include <algorithm>

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
    std::vector<char*> result;
    for (std::string& line : lines_) {
        result.push_back(line.data());
    }
    result.push_back(nullptr);
    return result;
}

}  // namespace slimwire::cli
