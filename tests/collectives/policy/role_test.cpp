// Names of communicators as frameworks give them, and what they say.
#include "collectives/policy/role.h"

#include <gtest/gtest.h>

namespace slimwire {
namespace {

TEST(Role, ByTheWordsOfTheName) {
    const struct {
        const char* name;
        std::optional<Role> role;
    } kCases[] = {
        {"dp", Role::kData},
        {"mesh_dp", Role::kData},
        {"mesh_dp_shard", Role::kData},
        {"DATA_PARALLEL_GROUP", Role::kData},
        {"data_parallel_rank3", Role::kData},
        {"fsdp:0", Role::kData},
        {"TENSOR_MODEL_PARALLEL_GROUP", Role::kTensor},
        {"mesh_tp", Role::kTensor},
        {"PIPELINE_MODEL_PARALLEL_GROUP", Role::kPipeline},
        {"pp2", Role::kPipeline},
        {"EXPERT_MODEL_PARALLEL_GROUP", Role::kExpert},
        {"ep", Role::kExpert},
        {"CONTEXT_PARALLEL_GROUP", Role::kContext},
        // Of experts, and yet data and tensor parallel.
        {"EXPERT_DATA_PARALLEL_GROUP", Role::kData},
        {"EXPERT_TENSOR_PARALLEL_GROUP", Role::kTensor},
        {"DATA_PARALLEL_GROUP_WITH_CP", Role::kData},
        // Of two kinds, or of none.
        {"TENSOR_AND_DATA_PARALLEL_GROUP", std::nullopt},
        {"default_pg", std::nullopt},
        {"adapter", std::nullopt},  // no word of its own
        {"", std::nullopt},
        {"__", std::nullopt},
        {"\xff\xfe dp", Role::kData},
    };
    for (const auto& one : kCases) {
        EXPECT_EQ(role_of(one.name), one.role) << one.name;
    }
}

TEST(Role, EveryRoleNamesItself) {
    for (int role = 0; role < kRoleCount; ++role) {
        EXPECT_EQ(role_of(role_name(static_cast<Role>(role))), static_cast<Role>(role));
    }
}

}  // namespace
}  // namespace slimwire
