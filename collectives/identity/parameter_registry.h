// The parameters of models as a program told them (slimwire.h): index, name and sizes. They name
// the parameters of models that are found in the traffic (ddp/), which come without names.
// One registry a process; thread-safe.
//
// Programs tell the same on all ranks, but nobody checks that here: names and shapes decide only
// where all ranks had registered the same when their communicator was made.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "codecs/base/status.h"
#include "collectives/identity/ddp/parameters.h"

namespace slimwire {

inline constexpr uint32_t kMostParameters = 1u << 20;  // of a model

// All models at one moment.
class RegisteredParameters {
  public:
    // Equal where the same was registered; 0: nothing.
    [[nodiscard]] uint64_t hash() const noexcept;
    // The names, in the order of the shapes, of the model whose parameters 0, 1, ... are exactly
    // those and no more; strides do not matter. Empty where no model is, or where several are that
    // differ in a name.
    [[nodiscard]] std::vector<std::string> names_of(std::span<const ParameterShape> shapes) const;
    // How groups of ranks share parameters (ResidualMap::Name), by name and elements; 0 where two
    // were told not the same.
    using Pieces = std::map<std::pair<std::string, uint64_t>, uint32_t>;
    [[nodiscard]] Pieces pieces() const;

  private:
    friend class ParameterRegistry;
    struct Parameter {
        std::string name;
        std::vector<int64_t> sizes;
        uint32_t pieces = 0;
    };
    using Model = std::map<uint32_t, Parameter>;
    std::map<uint32_t, Model> models_;
};

class ParameterRegistry {
  public:
    static ParameterRegistry& instance();

    // An error, which changes nothing, where name, index or sizes cannot be.
    Status add(uint32_t model, uint32_t index, const char* name, std::span<const int64_t> sizes);
    // The dimension along which ranks' parts of it lie behind one another, -1: each has all of it;
    // an error where there is no such parameter or dimension.
    Status split(uint32_t model, uint32_t index, int dimension);
    // False for a model without parameters.
    bool forget(uint32_t model);
    // How often the program told or forgot something.
    [[nodiscard]] uint64_t changes() const noexcept {
        return changes_.load(std::memory_order_relaxed);
    }
    [[nodiscard]] std::shared_ptr<const RegisteredParameters> now() const;

  private:
    mutable std::mutex mutex_;
    RegisteredParameters all_;
    std::atomic<uint64_t> changes_{0};
};

}  // namespace slimwire
