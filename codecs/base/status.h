// Status and Result<T>: how failures travel inside slimwire. Success costs one null pointer and no
// allocation. A failure carries a code and one line of text that says what was wrong, where, and
// what would be accepted; it is turned into an ncclResult_t once, at the boundary in plugin/.
// Log where the failure gets its meaning; callers pass it on. Thread contract: value types.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>

namespace slimwire {

enum class Code : uint8_t {
    kOk,
    kInvalidArgument,  // the caller or a configuration said something that cannot be
    kInvalidUsage,     // the call is legal but not in this state
    kUnsupported,      // a decision for "native", not a fault
    kNotFound,         // a file, library or symbol is missing
    kOutOfMemory,
    kCudaError,
    kNcclError,
    kSystemError,  // a system call failed
    kRemoteError,  // another rank failed or disappeared
    kInternalError,
};

class [[nodiscard]] Status {
  public:
    Status() noexcept = default;
    Status(Code code, std::string message)
        : error_(std::make_unique<Error>(Error{code, std::move(message)})) {}
    Status(Status&&) noexcept = default;
    Status& operator=(Status&&) noexcept = default;
    Status(const Status& other) : error_(other.error_ ? new Error(*other.error_) : nullptr) {}
    Status& operator=(const Status& other) {
        error_.reset(other.error_ ? new Error(*other.error_) : nullptr);
        return *this;
    }

    [[nodiscard]] bool ok() const noexcept { return error_ == nullptr; }
    [[nodiscard]] Code code() const noexcept { return error_ ? error_->code : Code::kOk; }
    // Empty for success; valid as long as this object.
    [[nodiscard]] const std::string& message() const noexcept {
        static const std::string empty;
        return error_ ? error_->message : empty;
    }

  private:
    struct Error {
        Code code;
        std::string message;
    };
    std::unique_ptr<Error> error_;
};

// A value or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
  public:
    Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
    Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {}

    [[nodiscard]] bool ok() const noexcept { return state_.index() == 0; }
    [[nodiscard]] T& value() & { return std::get<0>(state_); }
    [[nodiscard]] const T& value() const& { return std::get<0>(state_); }
    [[nodiscard]] T&& value() && { return std::get<0>(std::move(state_)); }
    // Success when there is a value.
    [[nodiscard]] Status status() const { return ok() ? Status() : std::get<1>(state_); }

  private:
    std::variant<T, Status> state_;
};

}  // namespace slimwire

// Returns the Status of `expression` from the enclosing function unless it is ok.
#define SLIMWIRE_TRY(expression)                            \
    do {                                                    \
        ::slimwire::Status slimwire_status_ = (expression); \
        if (!slimwire_status_.ok()) {                       \
            return slimwire_status_;                        \
        }                                                   \
    } while (false)

#define SLIMWIRE_CONCAT_INNER(a, b) a##b
#define SLIMWIRE_CONCAT(a, b) SLIMWIRE_CONCAT_INNER(a, b)

// SLIMWIRE_TRY_ASSIGN(auto x, f()): declares x from f()'s Result, or returns its Status.
#define SLIMWIRE_TRY_ASSIGN(declaration, expression) \
    SLIMWIRE_TRY_ASSIGN_IMPL(SLIMWIRE_CONCAT(slimwire_result_, __LINE__), declaration, expression)
#define SLIMWIRE_TRY_ASSIGN_IMPL(name, declaration, expression) \
    auto name = (expression);                                   \
    if (!name.ok()) {                                           \
        return name.status();                                   \
    }                                                           \
    declaration = std::move(name).value()
