// The boundary to NCCL, for the files behind calls.h: what runs there gives a Status, which becomes
// one result and at most one line.
#pragma once

#include <nccl.h>

#include <exception>
#include <memory>
#include <new>
#include <string>

#include "codecs/base/status.h"
#include "plugin/net/engine.h"
#include "plugin/net/nccl_log.h"

namespace slimwire::net::tables {

// What NCCL keeps as a context.
struct Session {
    std::shared_ptr<Context> context;
};

[[nodiscard]] ncclResult_t result_of(Code code) noexcept;

// kInvalidArgument with `text` unless `good`.
[[nodiscard]] inline Status ask(bool good, const char* text) {
    return good ? Status() : Status(Code::kInvalidArgument, text);
}

// Runs `call`, which gives a Status; what it throws becomes one.
template <class Call>
Status caught(Call&& call) noexcept {
    try {
        return call();
    } catch (const std::bad_alloc&) {
        return {Code::kOutOfMemory, "out of memory"};
    } catch (const std::exception& error) {
        return {Code::kInternalError, error.what()};
    }
}

// A `logged` that is set already keeps the line away: an error stays with its
// connection and comes back at each call.
template <class Call>
ncclResult_t answer(const char* what, bool* logged, Call&& call) noexcept {
    const Status status = caught(call);
    if (!status.ok() && (logged == nullptr || !*logged)) {
        (void)caught([&] {
            nccl_warn(std::string(what) + ": " + status.message());
            return Status();
        });
        if (logged != nullptr) {
            *logged = true;
        }
    }
    return result_of(status.code());
}

}  // namespace slimwire::net::tables
