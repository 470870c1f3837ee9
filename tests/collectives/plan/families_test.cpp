// Which codecs go on which operations: the table in codecs/README.md, cell by cell.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "collectives/algorithms/algorithm.h"
#include "collectives/dispatch/planner.h"
#include "collectives/plan/plan.h"
#include "collectives/policy/names.h"
#include "tests/collectives/plan/plans.h"

namespace slimwire {
namespace {

Config families_config_of(const Policy& policy) {
    Config config;
    config.policy = policy;
    config.active = true;
    return config;
}

CallSignature call_of(RedOp redop) {
    CallSignature signature;
    signature.count = 1 << 20;
    signature.dtype = DType::kFloat32;
    signature.redop = redop;
    return signature;
}

// Every cell of the table in codecs/README.md.
TEST(Families, GoOnTheOperationsThatTheTableSays) {
    const char* const root = std::getenv("SOURCE_ROOT");
    ASSERT_NE(root, nullptr);
    std::ifstream page(std::string(root) + "/codecs/README.md");
    const auto trimmed = [](const std::string& cell) {
        const size_t begin = cell.find_first_not_of(" `"), end = cell.find_last_not_of(" `");
        return begin == std::string::npos ? "" : cell.substr(begin, end + 1 - begin);
    };
    std::vector<std::string> head;
    int cells = 0;
    for (std::string line; std::getline(page, line);) {
        std::vector<std::string> row;
        std::istringstream text(line.substr(line.empty() ? 0 : 1));
        for (std::string cell; std::getline(text, cell, '|');) {
            row.push_back(trimmed(cell));
        }
        if (row.size() == 7 && row[0] == "family") {
            head = row;
        }
        if (head.empty() || row.size() != 7 || row[2].find("-") == 0 || row == head) {
            continue;
        }
        const bool masked = row[1].find("pair=mask") != std::string::npos;
        const bool coded = row[0] == "auto-encoder";
        for (size_t at = 2; at < head.size(); ++at) {
            SCOPED_TRACE(row[1] + " on " + head[at]);
            const std::string name = head[at].substr(0, head[at].find(','));
            const bool sequence = name == "allgather" || name == "reducescatter";
            const bool paired = masked || (coded && name != "send" && name != "allreduce");
            const std::string ops =
                paired && sequence ? "['allgather', 'reducescatter']" : '"' + name + '"';
            const Result<Policy> policy = parse_policy(
                "version = 1\n[[rule]]\nname = 'all'\nmatch = { op = " + ops + " }\ncodec = '" +
                    row[1] + "'\n" + (paired ? "forward_calls = 2\n" : ""),
                "p.toml");
            bool taken = policy.ok();
            if (taken) {
                const Config config = families_config_of(policy.value());
                const Op op = parse_op(name).value();
                CallSignature signature = call_of(reduces(op) ? RedOp::kSum : RedOp::kNone);
                signature.op = op;
                if (coded && op != Op::kAllReduce) {  // from the call on that tells its direction
                    const Plan before = make_plan(signature, shape_of(4), config);
                    EXPECT_FALSE(before.compressed);
                    EXPECT_TRUE(before.pairs.has_value());
                    EXPECT_EQ(std::string(before.remedy) == "slimwire_mark_step in each step",
                              paired);
                    signature.direction = Direction::kBackward;
                    EXPECT_TRUE(make_plan(signature, shape_of(4), config).compressed);
                    signature.direction = Direction::kForward;
                }
                const Plan plan = make_plan(signature, shape_of(4), config);
                taken = plan.compressed;
                if (taken && masked) {
                    EXPECT_TRUE(plan.pairs.has_value());
                    EXPECT_EQ(plan.algorithm, Algorithm::kDirect);
                    signature.direction = Direction::kBackward;
                    const Plan answer = make_plan(signature, shape_of(4), config);
                    EXPECT_TRUE(answer.compressed);
                    EXPECT_LT(wire_bytes_of(answer, shape_of(4), 0),
                              wire_bytes_of(plan, shape_of(4), 0));
                }
            }
            EXPECT_EQ(taken, row[at] == "yes") << row[at];
            EXPECT_TRUE(row[at] == "yes" || row[at] == "no");
            ++cells;
        }
    }
    EXPECT_EQ(cells, 13 * 5);
}

TEST(Families, BlocksAlongColumnsAreOfWholeMessagesWithoutResiduals) {
    const std::pair<const char*, const char*> kCases[] = {
        {"match = { op = 'alltoall' }\nerror_feedback = 'ef14'\n",
         "int8:row=64 goes by columns, which have no residuals"},
        {"match = { op = 'reducescatter' }\nalgorithm = 'hierarchical'\n",
         "a codec with row goes by the columns of whole messages"},
    };
    for (const auto& [what, reason] : kCases) {
        const Result<Policy> policy = parse_policy(
            std::string("version = 1\n[[rule]]\nname = 'all'\n") + what + "codec = 'int8:row=64'\n",
            "p.toml");
        ASSERT_TRUE(policy.ok()) << policy.status().message();
        const bool sums = std::string(what).find("reducescatter") != std::string::npos;
        CallSignature signature = call_of(sums ? RedOp::kSum : RedOp::kNone);
        signature.op = sums ? Op::kReduceScatter : Op::kAllToAll;
        const Plan plan = make_plan(signature, shape_of(4), families_config_of(policy.value()));
        EXPECT_FALSE(plan.compressed);
        EXPECT_EQ(plan.reason.find(reason), 0u) << plan.reason;
    }
}

// Else it would answer a message that has no mask.
TEST(Families, AnAnswerIsCompressedWhereWhatItAnswersIs) {
    for (const bool compressed : {false, true}) {
        const Result<Policy> policy = parse_policy(
            std::string("version = 1\n[[rule]]\nname = 'all'\nmatch = { op = 'send' }\n") +
                "codec = 'topk:pair=mask,fraction=" + (compressed ? "0.5" : "0.98") + "'\n",
            "p.toml");
        ASSERT_TRUE(policy.ok()) << policy.status().message();
        const Config config = families_config_of(policy.value());
        CallSignature signature = call_of(RedOp::kNone);
        for (const Op op : {Op::kSend, Op::kRecv}) {
            for (const Direction way :
                 {Direction::kUnknown, Direction::kForward, Direction::kBackward}) {
                signature.op = op;
                signature.direction = way;
                EXPECT_EQ(make_plan(signature, shape_of(2), config).compressed, compressed);
            }
        }
    }
}

}  // namespace
}  // namespace slimwire
