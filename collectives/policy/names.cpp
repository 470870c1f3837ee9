#include "collectives/policy/names.h"

#include <cctype>
#include <span>

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

template <class E>
std::optional<E> find(std::string_view text,
                      const std::vector<std::string_view>& names,
                      std::span<const Alias<E>> aliases = {}) {
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

// Of a table in the order of the enumeration.
template <class E, size_t N>
const char* name_in(const char* const (&names)[N], E value) noexcept {
    return static_cast<size_t>(value) < N ? names[static_cast<size_t>(value)] : "unknown";
}

}  // namespace

const char* op_name(Op op) noexcept {
    constexpr const char* kNames[] = {"allreduce", "reducescatter", "reduce", "allgather",
                                      "broadcast", "alltoall",      "gather", "scatter",
                                      "send",      "recv"};
    static_assert(std::size(kNames) == kOpCount);
    return name_in(kNames, op);
}

const char* direction_name(Direction direction) noexcept {
    constexpr const char* kNames[] = {"unknown", "forward", "backward"};
    return name_in(kNames, direction);
}

const char* redop_name(RedOp redop) noexcept {
    constexpr const char* kNames[] = {"sum", "prod", "max", "min", "avg", "premulsum", "none"};
    static_assert(std::size(kNames) == kRedOpCount);
    return name_in(kNames, redop);
}

const char* algorithm_name(Algorithm algorithm) noexcept {
    constexpr const char* kNames[] = {
        "auto",
        "native",
#define ALGORITHM(id, name, ops, estimate_ops) name,
#include "collectives/policy/algorithms.def"
#undef ALGORITHM
    };
    return name_in(kNames, algorithm);
}

const char* error_feedback_name(ErrorFeedback kind) noexcept {
    constexpr const char* kNames[] = {"none", "ef14", "ema", "ef21"};
    static_assert(std::size(kNames) == kErrorFeedbackCount);
    return name_in(kNames, kind);
}

const char* residual_type_name(ResidualType type) noexcept {
    constexpr const char* kNames[] = {"fp32", "bf16", "int8"};
    static_assert(std::size(kNames) == kResidualTypeCount);
    return name_in(kNames, type);
}

std::vector<std::string_view> op_names() {
    return names_of<Op>(kOpCount, op_name);
}
std::vector<std::string_view> dtype_names() {
    return names_of<DType>(kDTypeCount, dtype_name);
}
std::vector<std::string_view> redop_names() {
    return names_of<RedOp>(kRedOpCount, redop_name);
}
std::vector<std::string_view> scope_names() {
    return names_of<Scope>(kScopeCount, scope_name);
}
std::vector<std::string_view> algorithm_names() {
    return names_of<Algorithm>(kAlgorithmCount, algorithm_name);
}
std::vector<std::string_view> error_feedback_names() {
    return names_of<ErrorFeedback>(kErrorFeedbackCount, error_feedback_name);
}
std::vector<std::string_view> residual_type_names() {
    return names_of<ResidualType>(kResidualTypeCount, residual_type_name);
}
std::vector<std::string_view> role_names() {
    return names_of<Role>(kRoleCount, role_name);
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
