#include "collectives/policy/names.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "codecs/spec.h"

namespace slimwire {
namespace {

// Lower case, without '_' and '-'.
std::string folded(std::string_view text) {
    std::string out;
    for (const char c : text) {
        if (c != '_' && c != '-') {
            out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        }
    }
    return out;
}

template <class E>
struct Alias {
    const char* name;
    E value;
};

constexpr Alias<DType> kDTypeAliases[] = {
    {"int8", DType::kInt8},          {"char", DType::kInt8},
    {"uint8", DType::kUint8},        {"byte", DType::kUint8},
    {"int32", DType::kInt32},        {"int", DType::kInt32},
    {"uint32", DType::kUint32},      {"int64", DType::kInt64},
    {"long", DType::kInt64},         {"uint64", DType::kUint64},
    {"fp16", DType::kFloat16},       {"half", DType::kFloat16},
    {"float16", DType::kFloat16},    {"fp32", DType::kFloat32},
    {"float", DType::kFloat32},      {"float32", DType::kFloat32},
    {"fp64", DType::kFloat64},       {"double", DType::kFloat64},
    {"float64", DType::kFloat64},    {"bfloat16", DType::kBfloat16},
    {"fp8e4m3", DType::kFloat8e4m3}, {"float8e4m3", DType::kFloat8e4m3},
    {"fp8e5m2", DType::kFloat8e5m2}, {"float8e5m2", DType::kFloat8e5m2},
};
constexpr Alias<Op> kOpAliases[] = {{"bcast", Op::kBroadcast}};
constexpr Alias<RedOp> kRedOpAliases[] = {{"average", RedOp::kAvg}, {"product", RedOp::kProd}};

template <class E>
std::vector<std::string_view> names_of(int count, const char* (*name)(E)) {
    std::vector<std::string_view> names;
    for (int i = 0; i < count; ++i) {
        names.emplace_back(name(static_cast<E>(i)));
    }
    return names;
}

template <class E, size_t N>
std::optional<E> find(std::string_view text,
                      const std::vector<std::string_view>& names,
                      const Alias<E> (&aliases)[N]) {
    const std::string key = folded(text);
    for (size_t i = 0; i < names.size(); ++i) {
        if (key == folded(names[i])) {
            return static_cast<E>(i);
        }
    }
    for (const Alias<E>& alias : aliases) {
        if (key == alias.name) {
            return alias.value;
        }
    }
    return std::nullopt;
}

template <class E>
std::optional<E> find(std::string_view text, const std::vector<std::string_view>& names) {
    const std::string key = folded(text);
    for (size_t i = 0; i < names.size(); ++i) {
        if (key == folded(names[i])) {
            return static_cast<E>(i);
        }
    }
    return std::nullopt;
}

const char* dtype_name_of(DType type) {
    return dtype_name(type);
}
const char* op_name_of(Op op) {
    return op_name(op);
}
const char* redop_name_of(RedOp redop) {
    return redop_name(redop);
}
const char* scope_name_of(Scope scope) {
    return scope_name(scope);
}
const char* algorithm_name_of(Algorithm algorithm) {
    return algorithm_name(algorithm);
}
const char* error_feedback_name_of(ErrorFeedback kind) {
    return error_feedback_name(kind);
}
const char* residual_type_name_of(ResidualType type) {
    return residual_type_name(type);
}
const char* role_name_of(Role role) {
    return role_name(role);
}

}  // namespace

const char* op_name(Op op) noexcept {
    switch (op) {
        case Op::kAllReduce:
            return "allreduce";
        case Op::kReduceScatter:
            return "reducescatter";
        case Op::kReduce:
            return "reduce";
        case Op::kAllGather:
            return "allgather";
        case Op::kBroadcast:
            return "broadcast";
        case Op::kAllToAll:
            return "alltoall";
        case Op::kGather:
            return "gather";
        case Op::kScatter:
            return "scatter";
        case Op::kSend:
            return "send";
        case Op::kRecv:
            return "recv";
    }
    return "unknown";
}

const char* direction_name(Direction direction) noexcept {
    switch (direction) {
        case Direction::kUnknown:
            return "unknown";
        case Direction::kForward:
            return "forward";
        case Direction::kBackward:
            return "backward";
    }
    return "?";
}

const char* redop_name(RedOp redop) noexcept {
    switch (redop) {
        case RedOp::kSum:
            return "sum";
        case RedOp::kProd:
            return "prod";
        case RedOp::kMax:
            return "max";
        case RedOp::kMin:
            return "min";
        case RedOp::kAvg:
            return "avg";
        case RedOp::kPreMulSum:
            return "premulsum";
        case RedOp::kNone:
            return "none";
    }
    return "unknown";
}

const char* algorithm_name(Algorithm algorithm) noexcept {
    constexpr const char* kNames[] = {
        "auto",
        "native",
#define ALGORITHM(id, name, ops, estimate_ops) name,
#include "collectives/policy/algorithms.def"
#undef ALGORITHM
    };
    return kNames[static_cast<size_t>(algorithm)];
}

const char* error_feedback_name(ErrorFeedback kind) noexcept {
    switch (kind) {
        case ErrorFeedback::kNone:
            return "none";
        case ErrorFeedback::kEf14:
            return "ef14";
        case ErrorFeedback::kEma:
            return "ema";
        case ErrorFeedback::kEf21:
            return "ef21";
    }
    return "unknown";
}

const char* residual_type_name(ResidualType type) noexcept {
    switch (type) {
        case ResidualType::kFloat32:
            return "fp32";
        case ResidualType::kBfloat16:
            return "bf16";
        case ResidualType::kInt8:
            return "int8";
    }
    return "unknown";
}

std::vector<std::string_view> op_names() {
    return names_of<Op>(kOpCount, op_name_of);
}
std::vector<std::string_view> dtype_names() {
    return names_of<DType>(kDTypeCount, dtype_name_of);
}
std::vector<std::string_view> redop_names() {
    return names_of<RedOp>(kRedOpCount, redop_name_of);
}
std::vector<std::string_view> scope_names() {
    return names_of<Scope>(kScopeCount, scope_name_of);
}
std::vector<std::string_view> algorithm_names() {
    return names_of<Algorithm>(kAlgorithmCount, algorithm_name_of);
}
std::vector<std::string_view> error_feedback_names() {
    return names_of<ErrorFeedback>(kErrorFeedbackCount, error_feedback_name_of);
}
std::vector<std::string_view> residual_type_names() {
    return names_of<ResidualType>(kResidualTypeCount, residual_type_name_of);
}

std::vector<std::string_view> role_names() {
    return names_of<Role>(kRoleCount, role_name_of);
}
std::vector<std::string_view> direction_names() {
    return {direction_name(Direction::kForward), direction_name(Direction::kBackward)};
}

std::optional<Op> parse_op(std::string_view text) {
    return find<Op>(text, op_names(), kOpAliases);
}
std::optional<DType> parse_dtype(std::string_view text) {
    return find<DType>(text, dtype_names(), kDTypeAliases);
}
std::optional<RedOp> parse_redop(std::string_view text) {
    return find<RedOp>(text, redop_names(), kRedOpAliases);
}
std::optional<Scope> parse_scope(std::string_view text) {
    return find<Scope>(text, scope_names());
}
std::optional<Algorithm> parse_algorithm(std::string_view text) {
    return find<Algorithm>(text, algorithm_names());
}
std::optional<ErrorFeedback> parse_error_feedback(std::string_view text) {
    return find<ErrorFeedback>(text, error_feedback_names());
}
std::optional<ResidualType> parse_residual_type(std::string_view text) {
    return find<ResidualType>(text, residual_type_names());
}
std::optional<Role> parse_role(std::string_view text) {
    return find<Role>(text, role_names());
}
std::optional<Direction> parse_direction(std::string_view text) {
    const std::optional<int> known = find<int>(text, direction_names());
    return known ? std::optional(static_cast<Direction>(*known + 1)) : std::nullopt;
}

std::string join(const std::vector<std::string_view>& words) {
    std::string out;
    for (const std::string_view word : words) {
        out += out.empty() ? "" : ", ";
        out += word;
    }
    return out;
}

std::string suggestion(std::string_view text, const std::vector<std::string_view>& candidates) {
    const std::string_view best = nearest_word(text, candidates);
    return best.empty() ? std::string() : " (did you mean '" + std::string(best) + "'?)";
}

}  // namespace slimwire
