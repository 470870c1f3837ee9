// The files that reports and traces are read from: one JSON record a line.
#pragma once

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "codecs/base/status.h"

namespace slimwire::cli {

// A member is no value of the type that it is read as.
struct MemberError : std::runtime_error {
    MemberError(const void* member, const std::string& what)
        : std::runtime_error(what), at(member) {}
    const void* at;  // in its record
};

// What is no value of the type that it is read as is an error, not another value.
template <class T, class = void>
struct RecordMember : nlohmann::adl_serializer<T> {};
template <class T>
struct RecordMember<T, std::enable_if_t<std::is_arithmetic_v<T> || std::is_same_v<T, std::string>>>
    : nlohmann::adl_serializer<T> {
    static constexpr bool kWhole = std::is_integral_v<T> && !std::is_same_v<T, bool>;

    template <class Json>
    static bool fits(const Json& json) {
        if constexpr (std::is_same_v<T, std::string>) {
            return json.is_string();
        } else if constexpr (!kWhole) {
            return std::is_same_v<T, bool> ? json.is_boolean() : json.is_number();
        } else if (const auto* const counted = json.template get_ptr<const uint64_t*>()) {
            return std::in_range<T>(*counted);
        } else if (const auto* const whole = json.template get_ptr<const int64_t*>()) {
            return std::in_range<T>(*whole);
        } else if (const auto* const real = json.template get_ptr<const double*>()) {
            return *real == std::trunc(*real) && std::abs(*real) < 9e15 &&
                   std::in_range<T>(static_cast<int64_t>(*real));
        }
        return false;
    }
    template <class Json>
    static void from_json(const Json& json, T& value) {
        if (!fits(json)) {
            throw MemberError(&json, json.dump().substr(0, 80) + "; accepted: " +
                                         (std::is_same_v<T, std::string> ? "a text"
                                          : std::is_same_v<T, bool>      ? "true or false"
                                          : !kWhole                      ? "a number"
                                          : std::is_signed_v<T>          ? "a whole number"
                                                                : "a whole number from 0"));
        }
        nlohmann::adl_serializer<T>::from_json(json, value);
    }
};
using Record = nlohmann::basic_json<nlohmann::ordered_map,
                                    std::vector,
                                    std::string,
                                    bool,
                                    int64_t,
                                    uint64_t,
                                    double,
                                    std::allocator,
                                    RecordMember>;

// Those of `files` that are others than the ones before them; a note of each that is not. What is
// no regular file is an error: it may have no end, and is looked into before it is read.
Result<std::vector<std::string>> distinct_files(const std::vector<std::string>& files,
                                                std::vector<std::string>* notes);

// Gives each record of the file to `take`. Errors, those of `take` too, have the form "FILE:LINE:
// what"; a last line that was cut off is left out with a note, of an empty file there is one.
Status read_records(const std::string& path,
                    std::vector<std::string>* notes,
                    const std::function<Status(const Record& record)>& take);

}  // namespace slimwire::cli
