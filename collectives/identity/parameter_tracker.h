// What the calls of one communicator carry, as far as a framework's own traffic tells it
// (ddp/listener.h): hands the listener the results that it asks for, and numbers what
// it finds. There for rules that ask for parameters only.
//
// The answers must be equal on all ranks, because plans depend on them. Facts, order and results of
// collectives are; so the results must be in hand at the same call on every rank. That call is the
// next all-reduce of floating-point elements after a broadcast whose result is wanted. The program
// waited for the result before it, or it would not know its own parameters, and our copy is in
// front of the program's: it is asked for by a query. Where a program did not wait the call does,
// on the host, which is counted (CommStats::host_waits).
//
// Names of parameters (slimwire.h) are not in the traffic: those count that all ranks had
// registered when the communicator was made (parameter_registry.h).
//
// Kept for one communicator, and like it used by one thread at a time; end() may meet another that
// is still in a call (an abort).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "codecs/base/device.h"
#include "collectives/call/call.h"
#include "collectives/communicator/host_copies.h"
#include "collectives/identity/ddp/listener.h"
#include "collectives/identity/parameter_registry.h"
#include "collectives/policy/parameter_ranges.h"

namespace slimwire {

struct Communicator;

class ParameterTracker {
  public:
    static constexpr size_t kMaxKnown = 4096;  // further ones are not known
    static constexpr size_t kMaxReads = 16;    // results wanted and not read yet

    // `registered`: by all ranks alike; null: no rule asks. `limit_us`: how long it waits for a
    // result before that is an error; 0: as long as the communicator lives.
    explicit ParameterTracker(std::shared_ptr<const RegisteredParameters> registered,
                              uint64_t limit_us = 0) noexcept;

    // At the communicator's creation, on its device: gets what calls might have to wait for. As
    // HostCopies::prepare().
    bool prepare(const DeviceApi& api, DeviceMemory* memory, bool may_wait = true) {
        return copies_.prepare(api, memory, may_wait);
    }

    // The next well-formed collective of some elements: the number of what it carries, 0 where that
    // is not known. Errors: CUDA's, an aborted or broken communicator, and a call in the same group
    // as the broadcast that would tell what it carries. They stay, because other ranks may know.
    Result<uint32_t> next(const DeviceApi& api,
                          const Communicator& state,
                          const CollectiveCall& call);
    // The calls given so far are launched: has the results wanted copied on their streams. Waits
    // for a launch in the background (ncclInProgress).
    Status launched(const DeviceApi& api, const Communicator& state);
    // Whether launched() has something to do.
    [[nodiscard]] bool waits_for_launch() const noexcept { return launches_ > 0; }

    // By the number, for good; null for 0.
    [[nodiscard]] const ParameterRanges* find(uint32_t number) const noexcept;

    // Around the calls of a group, which if it is dropped never were. Once for each group.
    void group_begins();
    void group_ends(bool ran);

    // Gives back what it has. In an abort another thread may be in a call, and then all stays.
    void end(const DeviceApi& api, int device, bool abort, DeviceMemory* memory);

  private:
    // A result that is wanted.
    struct Read {
        CallSignature signature;
        uint64_t count = 0;
        const void* source = nullptr;
        cudaStream_t stream = nullptr;
        std::shared_ptr<HostValue> value;
        bool captured = false;  // what it will be is not known
    };
    // How things were before the group.
    struct Mark {
        DdpListener listener;
        size_t reads = 0;             // those of reads_ that are from before it
        std::optional<Read> dropped;  // one that the group's calls made needless
        size_t known = 0;
    };
    Status want(const DeviceApi& api, const CollectiveCall& call, uint64_t count);
    void drop_unfollowed(const CallSignature* next);
    Status settle(const DeviceApi& api, const Communicator& state);
    Status copy(const DeviceApi& api, const Communicator& state);
    void warn_if_late();
    uint32_t number_of(const BucketPlace& place);
    struct ModelNames {
        std::vector<std::string> names, keys;  // ParameterRange's
    };
    const ModelNames& names_of(const BucketPlace& place);

    const std::shared_ptr<const RegisteredParameters> registered_;
    const uint64_t changes_;  // of the registry when the communicator was made
    const uint64_t limit_us_;
    std::mutex mutex_;  // of all
    Status broken_;
    DdpListener listener_;
    std::vector<Read> reads_;
    size_t launches_ = 0;  // the last ones of reads_, which are to be launched yet
    std::optional<Mark> mark_;
    std::deque<ParameterRanges> known_;  // by numbers from 1 on
    bool warned_late_ = false;
    std::map<uint32_t, ModelNames> names_;  // of models, in the order of their numbers
    std::map<std::tuple<uint32_t, uint32_t, uint32_t>, uint32_t> numbers_;  // of a BucketPlace
    HostCopies copies_;
};

}  // namespace slimwire
