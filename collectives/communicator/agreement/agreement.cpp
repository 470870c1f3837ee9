#include "collectives/communicator/agreement/agreement.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

namespace slimwire {
namespace {

constexpr size_t kTailOffset = 64;
constexpr uint64_t kTailMagic = 0x3176746e41776c53ull;  // "SlwAntv1"

struct Tail {
    uint64_t magic;
    uint64_t token;
    uint8_t address[16];
    uint32_t scope;
    uint16_t port;
    uint8_t family;
    uint8_t version;
    uint32_t reserved;  // 0
    uint32_t checksum;  // over everything above
};
static_assert(sizeof(Tail) == 48 && kTailOffset + sizeof(Tail) <= NCCL_UNIQUE_ID_BYTES);

uint32_t checksum(const Tail& tail) noexcept {
    uint32_t hash = 2166136261u;  // FNV-1a
    const auto* bytes = reinterpret_cast<const uint8_t*>(&tail);
    for (size_t i = 0; i < offsetof(Tail, checksum); ++i) {
        hash = (hash ^ bytes[i]) * 16777619u;
    }
    return hash;
}

std::string rank_list(const std::vector<int>& ranks) {
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (size_t i = 0; i < ranks.size(); ++i) {
        if (i == 8) {
            return text + " and " + std::to_string(ranks.size() - i) + " more";
        }
        text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
    }
    return text;
}

}  // namespace

bool write_id_tail(const AgreementAddress& address, ncclUniqueId* id) noexcept {
    for (size_t i = kTailOffset; i < NCCL_UNIQUE_ID_BYTES; ++i) {
        if (id->internal[i] != 0) {
            return false;
        }
    }
    Tail tail{};
    tail.magic = kTailMagic;
    tail.token = address.token;
    std::memcpy(tail.address, address.address, sizeof(tail.address));
    tail.scope = address.scope;
    tail.port = address.port;
    tail.family = address.family;
    tail.version = kAgreementVersion;
    tail.checksum = checksum(tail);
    std::memcpy(id->internal + kTailOffset, &tail, sizeof(tail));
    return true;
}

TailState read_id_tail(const ncclUniqueId& id, AgreementAddress* address) noexcept {
    Tail tail;
    std::memcpy(&tail, id.internal + kTailOffset, sizeof(tail));
    if (tail.magic != kTailMagic) {
        return TailState::kAbsent;
    }
    if (tail.checksum != checksum(tail) || (tail.family != 4 && tail.family != 6) ||
        tail.port == 0) {
        return TailState::kTorn;
    }
    std::memcpy(address->address, tail.address, sizeof(tail.address));
    address->scope = tail.scope;
    address->port = tail.port;
    address->family = tail.family;
    address->token = tail.token;
    return TailState::kPresent;
}

namespace {

std::vector<std::string> split_at(const std::string& text, char separator) {
    std::vector<std::string> parts;
    for (size_t begin = 0; begin < text.size();) {
        const size_t end = std::min(text.find(separator, begin), text.size());
        parts.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

// Words of one line by the text before their '='; the rest of a line whose values have spaces stays
// with the word before.
std::map<std::string, std::string> words_of(const std::string& line) {
    std::map<std::string, std::string> words;
    std::string* last = nullptr;
    for (const std::string& word : split_at(line, ' ')) {
        if (const size_t at = word.find('='); at != std::string::npos) {
            last = &(words[word.substr(0, at)] = word.substr(at + 1));
        } else if (last != nullptr && word != "->") {
            *last += " " + word;
        }
    }
    return words;
}

std::string value_in(const std::map<std::string, std::string>& words, const std::string& key) {
    const auto found = words.find(key);
    return found == words.end() ? "none" : found->second;
}

}  // namespace

std::string first_difference(const std::string& one, const std::string& other) {
    if (one.empty() || other.empty()) {
        return {};
    }
    const std::vector<std::string> lines = split_at(one, '\n'), others = split_at(other, '\n');
    for (size_t i = 0; i < std::max(lines.size(), others.size()); ++i) {
        if (i >= lines.size() || i >= others.size()) {
            const std::string& more = i < lines.size() ? lines[i] : others[i];
            return ", in " + more.substr(0, more.find(':')) + ", which " +
                   (i < lines.size() ? "the last has not" : "the last alone has");
        }
        if (lines[i] == others[i]) {
            continue;
        }
        const size_t colon = lines[i].find(": ");
        const std::string where =
            colon == std::string::npos ? "" : " of " + lines[i].substr(0, colon);
        const auto body = [](const std::string& line) {
            const size_t at = line.find(": ");
            return words_of(at == std::string::npos ? line : line.substr(at + 2));
        };
        const auto here = body(lines[i]), there = body(others[i]);
        for (const auto* each : {&here, &there}) {
            for (const auto& [key, value] : *each) {
                if (value_in(here, key) != value_in(there, key)) {
                    return ", in " + key + where + ": " + value_in(here, key) + " and " +
                           value_in(there, key);
                }
            }
        }
    }
    return {};
}

Agreement decide(const std::vector<Hello>& hellos, int ranks, uint64_t timeout_us) {
    std::vector<const Hello*> by_rank(static_cast<size_t>(std::max(ranks, 0)), nullptr);
    for (const Hello& hello : hellos) {
        if (hello.ranks != ranks || hello.rank < 0 || hello.rank >= ranks) {
            return {Verdict::kError,
                    "rank " + std::to_string(hello.rank) + " of " + std::to_string(hello.ranks) +
                        " ranks said hello to a communicator of " + std::to_string(ranks)};
        }
        by_rank[static_cast<size_t>(hello.rank)] = &hello;
    }
    // Errors first: the program must learn of them even when some rank is missing.
    for (const Hello* hello : by_rank) {
        if (hello != nullptr && !hello->error.empty()) {
            return {Verdict::kError, "rank " + std::to_string(hello->rank) + ": " + hello->error};
        }
    }
    std::vector<int> missing, different;
    const Hello* first = nullptr;
    for (int rank = 0; rank < ranks; ++rank) {
        const Hello* hello = by_rank[static_cast<size_t>(rank)];
        if (hello == nullptr) {
            missing.push_back(rank);
        } else if (!hello->native_reason.empty()) {
            return {Verdict::kNative, "rank " + std::to_string(rank) + ": " + hello->native_reason};
        } else if (first == nullptr) {
            first = hello;
        } else if (hello->config_hash != first->config_hash) {
            different.push_back(rank);
        }
    }
    if (!different.empty()) {
        // One of those with equal configurations has told its settings.
        const auto settings_of = [&](const Hello& one) {
            const auto told = std::find_if(hellos.begin(), hellos.end(), [&](const Hello& hello) {
                return hello.config_hash == one.config_hash && !hello.settings.empty();
            });
            return told == hellos.end() ? std::string() : told->settings;
        };
        const Hello& other = *by_rank[static_cast<size_t>(different.front())];
        return {Verdict::kError,
                rank_list(different) + " and rank " + std::to_string(first->rank) +
                    " have different policies or plan-affecting variables" +
                    first_difference(settings_of(other), settings_of(*first)) +
                    "; give every rank the same SLIMWIRE_* variables and policy file"};
    }
    if (!missing.empty()) {
        return {Verdict::kNative, rank_list(missing) + " did not answer in " +
                                      std::to_string(timeout_us / 1000) +
                                      " ms (started without slimwire?)"};
    }
    return {Verdict::kGo, ""};
}

}  // namespace slimwire
