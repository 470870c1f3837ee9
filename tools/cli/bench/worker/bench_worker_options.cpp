#include "tools/cli/bench/worker/bench_worker_options.h"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <cstdlib>
#include <map>

namespace slimwire::bench {

void stop(const std::string& text) {
    std::fprintf(stderr, "slimwire bench: %s\n", text.c_str());
    std::exit(1);
}

Options parse_options(int argc, char** argv) {
    const std::map<std::string, Operation> operations = {
        {"all_reduce", Operation::kAllReduce}, {"reduce_scatter", Operation::kReduceScatter},
        {"all_gather", Operation::kAllGather}, {"all_to_all", Operation::kAllToAll},
        {"broadcast", Operation::kBroadcast},  {"reduce", Operation::kReduce},
        {"send_recv", Operation::kSendRecv},   {"pairs", Operation::kPairs}};
    const std::map<std::string, ncclDataType_t> types = {
        {"f32", ncclFloat32}, {"f16", ncclFloat16}, {"bf16", ncclBfloat16}};
    Options options;
    CLI::App app{"One rank of slimwire bench collective.", "slimwire-bench-worker"};
    app.add_option("--op", options.operation)
        ->required()
        ->transform(CLI::CheckedTransformer(operations));
    app.add_option("--dtype", options.type)->transform(CLI::CheckedTransformer(types));
    app.add_option("--bytes", options.bytes)->required()->delimiter(',');
    app.add_option("--port", options.port)->required()->check(CLI::PositiveNumber);
    app.add_option("--rounds", options.rounds)->check(CLI::PositiveNumber);
    app.add_option("--warmup", options.warmup)->check(CLI::PositiveNumber);
    app.add_option("--seed", options.seed);
    app.add_option("--out", options.out);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        std::exit(app.exit(error) == 0 ? 0 : 1);
    }
    return options;
}

}  // namespace slimwire::bench
