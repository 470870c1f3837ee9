// What a listener hears from calls that PyTorch's DistributedDataParallel really made (../traces,
// whose README and maker have the format), against what is true of the models.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "collectives/identity/ddp/listener.h"
#include "collectives/policy/names.h"
#include "tests/collectives/identity/ddp/models.h"

namespace slimwire {
namespace {

using Json = nlohmann::json;

struct Recorded {
    std::vector<ParameterShape> parameters;
    std::vector<std::vector<uint32_t>> buckets;
    bool has_scalar = false;  // a parameter without dimensions
    std::vector<Json> calls;
};

Recorded load(const std::filesystem::path& path) {
    Recorded recorded;
    std::ifstream stream(path);
    std::string line;
    std::getline(stream, line);
    const Json truth = Json::parse(line);
    for (const Json& parameter : truth.at("parameters")) {
        recorded.parameters.push_back({parameter.at("shape").get<std::vector<int64_t>>(),
                                       parameter.at("stride").get<std::vector<int64_t>>()});
        recorded.has_scalar |= recorded.parameters.back().sizes.empty();
    }
    recorded.buckets = truth.at("buckets").get<std::vector<std::vector<uint32_t>>>();
    while (std::getline(stream, line)) {
        recorded.calls.push_back(Json::parse(line));
    }
    return recorded;
}

// Gives all calls to a listener, and compares each bucket that it names. Returns the numbers of the
// buckets named, in order.
std::vector<uint32_t> listen(const Recorded& recorded) {
    DdpListener listener;
    std::vector<uint32_t> named;
    for (const Json& call : recorded.calls) {
        CallSignature signature;
        signature.op = parse_op(call.at("op").get<std::string>()).value();
        signature.dtype = parse_dtype(call.at("dtype").get<std::string>()).value();
        signature.count = call.at("count").get<uint64_t>();
        signature.root_or_peer = std::max(0, call.at("root").get<int>());
        if (listener.wanted(signature, 2) > 0) {
            listener.read(signature, call.at("values").get<std::vector<int64_t>>());
        }
        const bool floats =
            signature.dtype == DType::kFloat32 || signature.dtype == DType::kFloat64;
        if (signature.op != Op::kAllReduce || !floats) {
            continue;
        }
        const BucketPlace place = listener.next(signature.count);
        if (place.model == nullptr) {
            continue;
        }
        EXPECT_EQ(place.model->parameters, recorded.parameters);
        EXPECT_EQ(*place.bucket,
                  test::bucket_of(recorded.parameters, recorded.buckets.at(place.number)));
        EXPECT_EQ(place.bucket->count, signature.count);
        named.push_back(place.number);
    }
    return named;
}

TEST(DdpTraces, TablesEqualTheModels) {
    int models = 0;
    const std::filesystem::path folder(std::string(std::getenv("SOURCE_ROOT")) +
                                       "/tests/collectives/identity/ddp/traces");
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        if (entry.path().extension() != ".jsonl") {
            continue;
        }
        SCOPED_TRACE(entry.path().filename());
        const Recorded recorded = load(entry.path());
        const std::vector<uint32_t> named = listen(recorded);
        if (recorded.has_scalar) {
            // Nothing is sent of it, so that nothing tells where in the order it stands.
            EXPECT_TRUE(named.empty());
            continue;
        }
        // Of four steps at least two come after the buckets are known, and all of their buckets
        // are.
        const size_t buckets = recorded.buckets.size();
        ASSERT_GE(named.size(), 2 * buckets);
        for (size_t i = 0; i < named.size(); ++i) {
            EXPECT_EQ(named[i], i % buckets);
        }
        ++models;
    }
    EXPECT_GE(models, 5);
}

}  // namespace
}  // namespace slimwire
