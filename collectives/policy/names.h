// Names of enumerations as policies, variables, the command line and reports spell them, and the
// nearest name as error messages offer it. Pure functions over constant tables.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/call/call.h"
#include "collectives/policy/policy.h"

namespace slimwire {

// Case, '_' and '-' do not matter ("all_reduce", "AllReduce", "allreduce"); "bcast" is broadcast.
[[nodiscard]] std::optional<Op> parse_op(std::string_view text);
// dtype_name()'s names and fp16/half/float16, bfloat16, fp32/float/float32, fp64/double/float64,
// int8, uint8, ... .
[[nodiscard]] std::optional<DType> parse_dtype(std::string_view text);
[[nodiscard]] std::optional<RedOp> parse_redop(std::string_view text);
[[nodiscard]] std::optional<Scope> parse_scope(std::string_view text);
[[nodiscard]] std::optional<Algorithm> parse_algorithm(std::string_view text);
[[nodiscard]] std::optional<ErrorFeedback> parse_error_feedback(std::string_view text);
[[nodiscard]] std::optional<ResidualType> parse_residual_type(std::string_view text);
[[nodiscard]] std::optional<Role> parse_role(std::string_view text);
[[nodiscard]] std::optional<Direction> parse_direction(std::string_view text);

// The canonical names, in the order of the enumeration: for "accepted: ..." and completion.
[[nodiscard]] std::vector<std::string_view> op_names();
[[nodiscard]] std::vector<std::string_view> dtype_names();
[[nodiscard]] std::vector<std::string_view> redop_names();
[[nodiscard]] std::vector<std::string_view> scope_names();
[[nodiscard]] std::vector<std::string_view> algorithm_names();
[[nodiscard]] std::vector<std::string_view> error_feedback_names();
[[nodiscard]] std::vector<std::string_view> residual_type_names();
[[nodiscard]] std::vector<std::string_view> role_names();
[[nodiscard]] std::vector<std::string_view> direction_names();  // without that of kUnknown

// "a, b, c".
[[nodiscard]] std::string join(const std::vector<std::string_view>& words);

// " (did you mean 'x'?)" with nearest_word(), or "".
[[nodiscard]] std::string suggestion(std::string_view text,
                                     const std::vector<std::string_view>& candidates);

}  // namespace slimwire
