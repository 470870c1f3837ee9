// What plans in tests are made of: rules, ranks that agreed, sums.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>

#include "collectives/plan/plan.h"
#include "collectives/policy/config.h"
#include "collectives/policy/policy.h"

namespace slimwire {

inline Config config_of(const std::string& text) {
    Result<Policy> policy = parse_policy(text, "p.toml");
    EXPECT_TRUE(policy.ok()) << policy.status().message();
    Config config;
    config.policy = std::move(policy).value();
    config.active = true;
    return config;
}

// Of one rule "r".
inline Config by_keys(const std::string& keys) {
    return config_of("version = 1\n[[rule]]\nname = 'r'\n" + keys + "\n");
}

inline Config int4_config() {
    return config_of(
        "version = 1\n[[rule]]\nname = 'all'\nmatch = { op = 'allreduce' }\ncodec = 'int4'\n"
        "error_feedback = 'ef14'\nmin_bytes = 1024\n");
}

inline PlanShape shape_of(int ranks) {
    PlanShape shape;
    shape.ranks = ranks;
    shape.go = true;
    return shape;
}

inline CallSignature sum_of(uint64_t count,
                            DType dtype = DType::kFloat32,
                            RedOp redop = RedOp::kSum,
                            Op op = Op::kAllReduce) {
    CallSignature signature;
    signature.op = op;
    signature.count = count;
    signature.dtype = dtype;
    signature.redop = redop;
    return signature;
}

}  // namespace slimwire
