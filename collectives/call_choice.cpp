#include "collectives/call_choice.h"

#include <cstddef>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "collectives/hash.h"
#include "collectives/names.h"

namespace slimwire {
namespace {

constexpr unsigned int kMagic = 0xcafebeef;
constexpr unsigned int kFirstVersion = 23100;
// Size in the first version that had it; later ones only append.
constexpr size_t kFirstSize = 64;
static_assert(sizeof(ncclCollConfig_t) >= kFirstSize && offsetof(ncclCollConfig_t, ext) == 16);
// A longer list leads round in a circle.
constexpr int kMostExtensions = 4096;
// Pairs of texts that a thread keeps.
constexpr size_t kMostKnown = 64;

// The texts of one configuration; null where it does not say.
struct Asked {
    const char* codec = nullptr;
    const char* error_feedback = nullptr;
};

Status invalid(const char* function, const std::string& text) {
    return {Code::kInvalidArgument, std::string(function) + ": " + text};
}

Status read_list(const ncclConfigExt_t* list, const char* function, Asked* asked) {
    int seen = 0;
    for (const ncclConfigExt_t* one = list; one != nullptr; one = one->next) {
        if (++seen > kMostExtensions) {
            return invalid(function, "config->ext has no end after " +
                                         std::to_string(kMostExtensions) + " options");
        }
        if (one->key.vendorId != kChoiceVendor) {
            continue;
        }
        const bool is_codec = one->key.optionId == kChoiceCodec;
        if (!is_codec && one->key.optionId != kChoiceErrorFeedback) {
            return invalid(function, "option " + std::to_string(one->key.optionId) +
                                         " of slimwire in config->ext is unknown; accepted: 1 "
                                         "(codec), 2 (error feedback)");
        }
        if (one->val.s == nullptr) {
            return invalid(function, std::string(is_codec ? "the codec" : "the error feedback") +
                                         " in config->ext is a null string");
        }
        (is_codec ? asked->codec : asked->error_feedback) = one->val.s;
    }
    return {};
}

// All choices of the process; never freed, because plans of any thread look here.
struct Choices {
    std::mutex mutex;
    std::map<uint64_t, Action> actions;
};
Choices& choices() {
    static auto* const all = new Choices;
    return *all;
}

Result<uint64_t> make_choice(const Asked& asked, const char* function) {
    if (asked.codec == nullptr) {
        return invalid(function, "config->ext has error feedback for slimwire, and no codec");
    }
    Action action;
    Result<std::optional<CodecSpec>> codec = parse_codec_or_native(asked.codec);
    if (!codec.ok()) {
        return invalid(function, "codec in config->ext: " + codec.status().message());
    }
    action.codec = std::move(codec).value();
    if (action.low_rank()) {
        return invalid(function,
                       "codec '" + action.codec->to_string() +
                           "' in config->ext: its factors are equal on all ranks only where all "
                           "agree on the tensor's place in the step, which rules of the policy ask "
                           "for; accepted: any other codec");
    }
    if (asked.error_feedback != nullptr) {
        const auto parsed = parse_error_feedback(asked.error_feedback);
        if (!parsed.has_value()) {
            return invalid(function,
                           std::string("error feedback '") + asked.error_feedback +
                               "' in config->ext; accepted: " + join(error_feedback_names()));
        }
        if (*parsed == ErrorFeedback::kEf21) {
            return invalid(function,
                           "error feedback 'ef21' in config->ext: its estimates are equal on all "
                           "ranks only where all agree on the tensor's place in the step, which "
                           "rules of the policy ask for; accepted: none, ef14, ema");
        }
        action.error_feedback = *parsed;
    }
    const std::string canonical =
        (action.codec ? action.codec->to_string() : std::string("native")) + "\n" +
        error_feedback_name(action.error_feedback);
    const uint64_t number = stable_hash(canonical) | 1;
    const std::lock_guard lock(choices().mutex);
    choices().actions.try_emplace(number, std::move(action));
    return number;
}

}  // namespace

Result<uint64_t> read_choice(const ncclCollConfig_t& config, const char* function) {
    if (config.size < kFirstSize) {
        return invalid(function, "config->size is " + std::to_string(config.size) +
                                     "; at least 64 is expected, as NCCL_COLLCONFIG_INITIALIZER "
                                     "sets it");
    }
    if (config.magic != kMagic) {
        return invalid(function, "config->magic is " + std::to_string(config.magic) +
                                     "; initialize the configuration with "
                                     "NCCL_COLLCONFIG_INITIALIZER");
    }
    if (config.version < kFirstVersion) {
        return invalid(function, "config->version is " + std::to_string(config.version) +
                                     "; configurations exist since 23100 (NCCL 2.31)");
    }
    Asked asked;
    SLIMWIRE_TRY(read_list(config.ext, function, &asked));
    if (asked.codec == nullptr && asked.error_feedback == nullptr) {
        return uint64_t{0};
    }
    // A program has a handful of them.
    struct Known {
        std::string codec, error_feedback;
        uint64_t number = 0;
    };
    static thread_local std::vector<Known> known;
    const char* const codec = asked.codec != nullptr ? asked.codec : "";
    const char* const feedback = asked.error_feedback != nullptr ? asked.error_feedback : "";
    for (const Known& one : known) {
        if (one.codec == codec && one.error_feedback == feedback) {
            return one.number;
        }
    }
    SLIMWIRE_TRY_ASSIGN(const uint64_t number, make_choice(asked, function));
    if (known.size() < kMostKnown) {
        known.push_back({codec, feedback, number});
    }
    return number;
}

const Action* find_choice(uint64_t asked) {
    const std::lock_guard lock(choices().mutex);
    const auto found = choices().actions.find(asked);
    return found == choices().actions.end() ? nullptr : &found->second;
}

}  // namespace slimwire
