#include "collectives/identity/parameter_registry.h"

#include <algorithm>

#include "collectives/call/hash.h"
#include "collectives/communicator/rank_identities.h"
#include "collectives/identity/tensor_names.h"

namespace slimwire {

ParameterRegistry& ParameterRegistry::instance() {
    static ParameterRegistry* const registry = new ParameterRegistry;
    return *registry;
}

Status ParameterRegistry::add(uint32_t model,
                              uint32_t index,
                              const char* name,
                              std::span<const int64_t> sizes) {
    SLIMWIRE_TRY(check_name(name));
    if (index >= kMostParameters) {
        return {Code::kInvalidArgument, "index " + std::to_string(index) +
                                            " of a parameter; at most " +
                                            std::to_string(kMostParameters - 1)};
    }
    if (sizes.size() > kMaxParameterDimensions) {
        return {Code::kInvalidArgument, std::to_string(sizes.size()) + " dimensions; at most " +
                                            std::to_string(kMaxParameterDimensions)};
    }
    for (const int64_t size : sizes) {
        if (size < 0) {
            return {Code::kInvalidArgument, "a size of " + std::to_string(size)};
        }
    }
    const std::lock_guard lock(mutex_);
    changes_.fetch_add(1, std::memory_order_relaxed);
    all_.models_[model].insert_or_assign(
        index,
        RegisteredParameters::Parameter{name, std::vector<int64_t>(sizes.begin(), sizes.end())});
    return {};
}

bool ParameterRegistry::forget(uint32_t model) {
    const std::lock_guard lock(mutex_);
    changes_.fetch_add(1, std::memory_order_relaxed);
    return all_.models_.erase(model) == 1;
}

std::shared_ptr<const RegisteredParameters> ParameterRegistry::now() const {
    const std::lock_guard lock(mutex_);
    return std::make_shared<const RegisteredParameters>(all_);
}

uint64_t RegisteredParameters::hash() const noexcept {
    uint64_t hash = 0;
    for (const auto& [number, model] : models_) {
        for (const auto& [index, parameter] : model) {
            hash = mix_key(mix_key(mix_key(hash, number), index), stable_hash(parameter.name));
            for (const int64_t size : parameter.sizes) {
                hash = mix_key(hash, static_cast<uint64_t>(size));
            }
        }
    }
    return models_.empty() ? 0 : hash | 1;
}

std::vector<std::string> RegisteredParameters::names_of(
    std::span<const ParameterShape> shapes) const {
    std::vector<std::string> names;
    for (const auto& [number, model] : models_) {
        // Indices ascend: the last one tells that none is left out.
        if (shapes.empty() || model.size() != shapes.size() ||
            model.rbegin()->first != shapes.size() - 1 ||
            !std::all_of(model.begin(), model.end(), [&](const auto& parameter) {
                return parameter.second.sizes == shapes[parameter.first].sizes;
            })) {
            continue;
        }
        std::vector<std::string> of_this;
        for (const auto& [index, parameter] : model) {
            of_this.push_back(parameter.name);
        }
        if (!names.empty() && names != of_this) {
            return {};
        }
        names = std::move(of_this);
    }
    return names;
}

}  // namespace slimwire
