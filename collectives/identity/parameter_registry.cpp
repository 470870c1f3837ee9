#include "collectives/identity/parameter_registry.h"

#include <algorithm>

#include "collectives/call/hash.h"
#include "collectives/communicator/rank_identities.h"
#include "collectives/identity/tensor_names.h"
#include "collectives/state/residual_map.h"

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

Status ParameterRegistry::split(uint32_t model, uint32_t index, int dimension) {
    const std::lock_guard lock(mutex_);
    const auto of = all_.models_.find(model);
    const auto found =
        of == all_.models_.end() ? RegisteredParameters::Model::iterator() : of->second.find(index);
    if (of == all_.models_.end() || found == of->second.end()) {
        return {Code::kInvalidArgument, "model " + std::to_string(model) +
                                            " has no parameter of index " + std::to_string(index)};
    }
    RegisteredParameters::Parameter& one = found->second;
    if (dimension < -1 || dimension >= static_cast<int>(one.sizes.size())) {
        return {Code::kInvalidArgument, "dimension " + std::to_string(dimension) + " of " +
                                            std::to_string(one.sizes.size()) +
                                            "; -1 where each rank has all of it"};
    }
    uint64_t pieces = 1;
    for (int i = 0; i < dimension; ++i) {
        pieces *= static_cast<uint64_t>(one.sizes[static_cast<size_t>(i)]);
    }
    // Larger ones are not told.
    one.pieces = dimension < 0
                     ? ResidualMap::kReplicated
                     : static_cast<uint32_t>(pieces < ResidualMap::kReplicated ? pieces : 0);
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

RegisteredParameters::Pieces RegisteredParameters::pieces() const {
    Pieces all;
    for (const auto& [number, model] : models_) {
        for (const auto& [index, parameter] : model) {
            if (parameter.pieces == 0) {
                continue;
            }
            uint64_t elems = 1;
            for (const int64_t size : parameter.sizes) {
                elems *= static_cast<uint64_t>(size);
            }
            const auto [found, made] =
                all.emplace(std::pair(parameter.name, elems), parameter.pieces);
            found->second = found->second == parameter.pieces ? parameter.pieces : 0;
        }
    }
    return all;
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
