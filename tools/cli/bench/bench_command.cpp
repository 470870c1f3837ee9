// `slimwire bench`: arguments of the benchmarks.
#include <CLI/CLI.hpp>
#include <memory>

#include "tools/cli/bench/bench_codec.h"
#include "tools/cli/bench/bench_collective.h"
#include "tools/cli/bench/bench_overhead.h"
#include "tools/cli/common/argument_checks.h"
#include "tools/cli/common/commands.h"

namespace slimwire::cli {

namespace {

void add_overhead(CLI::App* bench, Invocation* invocation) {
    auto overhead = std::make_shared<OverheadOptions>();
    CLI::App* overhead_app = bench->add_subcommand(
        "overhead", "cost of a call that slimwire leaves alone, over an NCCL that does nothing");
    overhead_app->add_option("--calls", overhead->calls, "calls of each case")
        ->check(CLI::Range(100L, 1'000'000'000L))
        ->capture_default_str();
    overhead_app
        ->add_option("--limit-ns", overhead->limit_ns,
                     "fail when the median of a case lies more than this above the direct call's")
        ->check(number_between(0, 1e9));
    overhead_app->add_flag("--json", overhead->json, "JSON lines (collectives/SCHEMA.md)");
    overhead_app->footer("Percentiles are of batches of 100 calls, without the clock's own cost.");
    overhead_app->callback([=] { invocation->action = [=] { return bench_overhead(*overhead); }; });
}

void add_collective(CLI::App* bench, Invocation* invocation) {
    auto collective = std::make_shared<CollectiveOptions>();
    CLI::App* collective_app = bench->add_subcommand(
        "collective",
        "a compressed operation against the native one, in turn in the same processes");
    add_run_options(collective_app, collective.get());
    collective_app
        ->add_option("--algorithm", collective->algorithm, "of the compressed calls; default: auto")
        ->check(CLI::IsMember(kBenchedAlgorithms));
    collective_app->add_option("--ef", collective->error_feedback,
                               "error feedback: none, ef14, ema or ef21");
    collective_app->add_option("--warmup", collective->warmup, "rounds before them")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    collective_app->add_option("--seed", collective->seed, "of the data")
        ->check(whole_number(0, UINT64_MAX))
        ->capture_default_str();
    collective_app->add_flag("--json", collective->json, "JSON lines (collectives/SCHEMA.md)");
    collective_app->footer(
        "Data are normal deviates; the error is relative L2 against float64. A line whose "
        "efficiency "
        "is above 1.02 or whose native time is above 1.05 of the ideal is reported as failed, exit "
        "code 1.");
    collective_app->callback(
        [=] { invocation->action = [=] { return bench_collective(*collective); }; });
}

void add_nccl_tests(CLI::App* bench, Invocation* invocation) {
    auto nccl_tests = std::make_shared<NcclTestsOptions>();
    CLI::App* nccl_tests_app = bench->add_subcommand(
        "nccl-tests",
        "your own nccl-tests program, natively and by a codec: slimwire bench nccl-tests "
        "[options] -- [LAUNCHER...] BIN [ARGS...]");
    nccl_tests_app->add_option("--codec", nccl_tests->codec, "of the second run")
        ->capture_default_str();
    nccl_tests_app
        ->add_option("--ranks", nccl_tests->ranks,
                     "run on the emulator, with this many devices; default: as it is started")
        ->check(CLI::Range(1, 64));
    nccl_tests_app->add_option("--nodes", nccl_tests->nodes,
                               "emulated nodes and ranks of each, as 2x4; default: one per rank");
    nccl_tests_app->add_option("--link", nccl_tests->link,
                               "rate and latency of a node's network, as 1gbit; default: unshaped");
    nccl_tests_app
        ->add_option("--timeout", nccl_tests->timeout_seconds, "seconds that one run may take")
        ->check(number_between(1, 1e6))
        ->capture_default_str();
    // Scripts of older releases say it; there is no third run any more that it could turn off.
    nccl_tests_app->add_flag("--no-16bit")->group("");
    nccl_tests_app->footer(
        "Prints the program's own table, its rows marked with native or the codec. The data check "
        "is off in the codec's run (-c 0), because it compares exactly. Exit code 1 when a run "
        "failed.");
    nccl_tests_app->callback([=] {
        invocation->action = [=] { return bench_nccl_tests(*nccl_tests, invocation->command); };
    });
}

void add_codec(CLI::App* bench, Invocation* invocation) {
    auto codec = std::make_shared<CodecBenchOptions>();
    CLI::App* codec_app =
        bench->add_subcommand("codec", "codecs against a copy of the same buffer, in the same run");
    codec_app->add_option("--device", codec->device, "host (one core) or cuda")
        ->check(CLI::IsMember({"host", "cuda"}))
        ->capture_default_str();
    codec_app->add_option(
        "--codec", codec->codecs,
        "a specification, as int4:rotate=64; may be repeated. Default: all codecs");
    codec_app->add_option("--op", codec->ops,
                          "comma list of encode, encode_residual, decode, decode_accumulate, "
                          "decode_reduce_encode, decode_reduce; default: all");
    codec_app->add_option("--data", codec->data,
                          "comma list of gaussian, synth, bucket, weights, zeros90, random; or "
                          "all. Default: gaussian, with --table all");
    codec_app->add_option("--dtype", codec->dtypes, "comma list of element types, as f32,bf16")
        ->capture_default_str();
    codec_app->add_option("--bytes", codec->bytes, "size of the user's buffer")
        ->capture_default_str();
    codec_app->add_option("--isa", codec->isa, "scalar, avx2 or avx512; default: the best");
    codec_app->add_option("--inputs", codec->inputs, "encodings that the reductions sum")
        ->check(CLI::Range(1, 1024))
        ->capture_default_str();
    codec_app->add_option("--rounds", codec->rounds, "measured rounds; the median counts")
        ->check(CLI::Range(1, 10000))
        ->capture_default_str();
    codec_app->add_option(
        "--data-folder", codec->data_folder,
        "where bucket.npy and weights.npy are, which tests/bench/make_data makes");
    codec_app->add_flag("--table", codec->table,
                        "for each data set how many times smaller, and the relative error; "
                        "nothing is timed");
    codec_app->add_flag("--json", codec->json, "JSON lines (collectives/SCHEMA.md)");
    codec_app->callback([=] { invocation->action = [=] { return bench_codec(*codec); }; });
}

}  // namespace

void add_run_options(CLI::App* command, CollectiveOptions* run) {
    command
        ->add_option("--op", run->op,
                     "all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, reduce, "
                     "send_recv (a ring, in groups) or pairs (even ranks send, odd receive)")
        ->capture_default_str();
    command->add_option("--codec", run->codecs, "comma list; native measures the noise")
        ->capture_default_str();
    command->add_option("--dtype", run->dtype, "f32, f16 or bf16")
        ->transform(type_among({"f32", "f16", "bf16"}))
        ->capture_default_str();
    command->add_option("--bytes", run->bytes, "comma list of sizes, as 1MiB,64MiB")
        ->capture_default_str();
    command
        ->add_option("--ranks", run->ranks,
                     "emulated ranks; default: 4, or those of the job whose launcher starts this")
        ->check(CLI::Range(1, 1024));
    command->add_option("--nodes", run->nodes, "emulated nodes; default: one per rank")
        ->check(CLI::Range(1, 1024));
    command->add_option("--link", run->link,
                        "rate and latency of a node's network, as 1gbit; default: unshaped");
    command->add_option("--rounds", run->rounds, "measured rounds")
        ->check(CLI::Range(1, 10000))
        ->capture_default_str();
}

void add_bench_command(CLI::App& app, Invocation* invocation) {
    CLI::App* bench = app.add_subcommand("bench", "measure slimwire on this machine");
    bench->require_subcommand(1);
    add_overhead(bench, invocation);
    add_collective(bench, invocation);
    add_nccl_tests(bench, invocation);
    add_codec(bench, invocation);
}

}  // namespace slimwire::cli
