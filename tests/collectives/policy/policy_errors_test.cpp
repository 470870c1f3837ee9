// Every way to write a rule of a policy wrong ends in one line that says where, what and what is
// accepted; of the file around the rules: policy_file_errors_test.cpp.
#include <gtest/gtest.h>

#include "tests/collectives/policy_error.h"

namespace slimwire {
namespace {

// What each case of a rule follows.
constexpr char kHead[] = "version = 1\n[[rule]]\nname = \"grads\"\n";

TEST(PolicyErrors, inside_a_rule) {
    const Case kCases[] = {
        {"codek = \"int4\"",
         "p.toml:4:1: rule 'grads': unknown key 'codek' of a rule (did you mean 'codec'?); "
         "accepted: name, match, codec, algorithm, error_feedback, start_step, min_bytes, "
         "intra_codec, ef, residual, ramp, accordion, average_every, average_codec, step_ahead, "
         "pairing, forward_calls, recomputed, early_stop"},
        {"match = { opp = \"allreduce\" }",
         "p.toml:4:11: rule 'grads': unknown key 'opp' of match (did you mean 'op'?); accepted: "
         "op, dtype, redop, bytes, ranks, scope, comm, role, param, index, name, ordinal, "
         "direction"},
        {"match = { op = \"alreduce\" }",
         "p.toml:4:16: rule 'grads': bad value 'alreduce' of 'op' (did you mean 'allreduce'?); "
         "accepted: allreduce, reducescatter, reduce, allgather, broadcast, alltoall, gather, "
         "scatter, send, recv"},
        {"match = { op = 3 }",
         "p.toml:4:16: rule 'grads': 'op' is an integer; accepted: a string or an array of: "
         "allreduce, reducescatter, reduce, allgather, broadcast, alltoall, gather, scatter, send, "
         "recv"},
        {"match = { dtype = [] }",
         "p.toml:4:19: rule 'grads': 'dtype' is an array; accepted: at least one of: i8, u8, i32, "
         "u32, i64, u64, f16, f32, f64, bf16, f8e4m3, f8e5m2"},
        {"match = { dtype = [\"f32\", \"f33\"] }",
         "p.toml:4:27: rule 'grads': bad value 'f33' of 'dtype' (did you mean 'f32'?); accepted: "
         "i8, u8, i32, u32, i64, u64, f16, f32, f64, bf16, f8e4m3, f8e5m2"},
        {"match = { redop = \"mean\" }",
         "p.toml:4:19: rule 'grads': bad value 'mean' of 'redop'; accepted: sum, prod, max, min, "
         "avg, premulsum, none"},
        {"match = { scope = \"rack\" }",
         "p.toml:4:19: rule 'grads': bad value 'rack' of 'scope'; accepted: intra_node, "
         "inter_node"},
        {"match = { param = \"1D\" }",
         "p.toml:4:19: rule 'grads': bad value '1D' of 'param'; accepted: 1d, 2d, 3d, 4d, 5d, and "
         "with a plus (2d+) or more"},
        {"match = { param = [\"1d\", \"6d\"] }",
         "p.toml:4:26: rule 'grads': bad value '6d' of 'param'; accepted: 1d, 2d, 3d, 4d, 5d, and "
         "with a plus (2d+) or more"},
        {"match = { param = 1 }",
         "p.toml:4:19: rule 'grads': 'param' is an integer; accepted: a string or an array of: 1d, "
         "2d, 3d, 4d, 5d, and with a plus (2d+) or more"},
        {"match = { param = [] }",
         "p.toml:4:19: rule 'grads': 'param' is an array; accepted: at least one of: 1d, 2d, 3d, "
         "4d, 5d, and with a plus (2d+) or more"},
        {"match = { index = [1, \"9-3\"] }",
         "p.toml:4:23: rule 'grads': bad value '9-3' of 'index'; accepted: numbers of parameters "
         "in the model, from 0, and ranges like \"10-20\" or \"12-\""},
        {"match = { ordinal = [0, \"5-3\"] }",
         "p.toml:4:25: rule 'grads': bad value '5-3' of 'ordinal'; accepted: places among a step's "
         "calls of one kind, from 0, and ranges like \"10-20\" or \"12-\""},
        {"match = { direction = \"up\", op = \"send\" }",
         "p.toml:4:23: rule 'grads': bad value 'up' of 'direction'; accepted: forward, backward"},
        {"match = { direction = \"forward\" }\ncodec = \"int8\"",
         "p.toml:4:23: rule 'grads': 'direction' in a rule of operations that no call answers, "
         "like an all-reduce; accepted: match = { op = [\"send\", \"recv\"] }, \"alltoall\", "
         "[\"allgather\", \"reducescatter\"]"},
        {"match = { op = \"reducescatter\", direction = \"backward\" }\nforward_calls = 1",
         "p.toml:4:45: rule 'grads': 'direction' in a rule of one of all-gather and "
         "reduce-scatter, each of which answers the other; accepted: match = { op = "
         "[\"allgather\", \"reducescatter\"] }"},
        {"match = { op = [\"alltoall\", \"send\"], direction = \"backward\" }",
         "p.toml:4:50: rule 'grads': 'direction' in a rule of collectives without 'forward_calls', "
         "of which nothing else tells the answers; accepted: forward_calls = 1 where each is "
         "answered before the next, or how many come before their answers"},
        {"match = { ordinal = true }",
         "p.toml:4:21: rule 'grads': 'ordinal' is a boolean; accepted: places among a step's calls "
         "of one kind, from 0, and ranges like \"10-20\" or \"12-\""},
        {"match = { index = -1 }",
         "p.toml:4:19: rule 'grads': bad value '-1' of 'index'; accepted: numbers of parameters in "
         "the model, from 0, and ranges like \"10-20\" or \"12-\""},
        {"match = { index = 1.5 }",
         "p.toml:4:19: rule 'grads': 'index' is a floating-point number; accepted: numbers of "
         "parameters in the model, from 0, and ranges like \"10-20\" or \"12-\""},
        {"match = { comm = [] }",
         "p.toml:4:18: rule 'grads': 'comm' is an array; accepted: at least one of: names that the "
         "program gives communicators (ncclConfig_t.commName), with '*' for any characters and '?' "
         "for one, like \"mesh_dp*\""},
        {"match = { role = \"ddp\" }",
         "p.toml:4:18: rule 'grads': bad value 'ddp' of 'role' (did you mean 'dp'?); accepted: dp, "
         "tp, pp, ep, cp"},
        {"match = { name = \"\" }",
         "p.toml:4:18: rule 'grads': bad value '' of 'name'; accepted: names of parameters, with "
         "'*' for any characters and '?' for one, like \"*.bias\""},
        {"match = { name = 3 }",
         "p.toml:4:18: rule 'grads': 'name' is an integer; accepted: names of parameters, with '*' "
         "for any characters and '?' for one, like \"*.bias\""},
        {"match = { bytes = \"1MiB\" }",
         "p.toml:4:19: rule 'grads': bad value '1MiB' of 'bytes': not a range; accepted: a range "
         "like \"1MiB..\", \"..4KiB\" or \"64KiB..1MiB\""},
        {"match = { bytes = \"1MiB..4KiB\" }",
         "p.toml:4:19: rule 'grads': bad value '1MiB..4KiB' of 'bytes': the first end is above the "
         "second; accepted: a range like \"1MiB..\", \"..4KiB\" or \"64KiB..1MiB\""},
        {"match = { bytes = \"1MB..\" }",
         "p.toml:4:19: rule 'grads': bad value '1MB..' of 'bytes': size '1MB': unknown unit 'mb'; "
         "accepted: a number of bytes or one with KiB, MiB, GiB or TiB, like 64KiB"},
        {"match = { bytes = 1048576 }",
         "p.toml:4:19: rule 'grads': 'bytes' is an integer; accepted: a range like \"1MiB..\", "
         "\"..4KiB\" or \"64KiB..1MiB\""},
        {"match = { ranks = \"two..4\" }",
         "p.toml:4:19: rule 'grads': bad value 'two..4' of 'ranks': 'two' is not a number of "
         "ranks; accepted: a number of ranks or a range like \"2..16\" or \"4..\""},
        {"match = { ranks = 0 }",
         "p.toml:4:19: rule 'grads': bad value '0' of 'ranks'; accepted: a number of ranks or a "
         "range like \"2..16\" or \"4..\""},
        {"match = \"allreduce\"",
         "p.toml:4:9: rule 'grads': 'match' is a string; accepted: a table, like { op = "
         "\"allreduce\" }"},
        {"codec = 4",
         "p.toml:4:9: rule 'grads': 'codec' is an integer; accepted: 'native' or a codec"},
        {"codec = \"palette:slot=0.75\"",
         "p.toml:4:9: rule 'grads': bad value 'palette:slot=0.75' of 'codec': no collective goes "
         "by palette; it was removed: the net plugin (NCCL_NET_PLUGIN=slimwire) sends losslessly "
         "by it"},
        {"codec = \"int8\"\nalgorithm = \"ring\"",
         "p.toml:5:13: rule 'grads': bad value 'ring' of 'algorithm'; accepted: auto, native, "
         "two_shot, direct, hierarchical, gather, summable, sparse, low_rank"},
        {"codec = \"int8\"\nerror_feedback = true",
         "p.toml:5:18: rule 'grads': 'error_feedback' is a boolean; accepted: none, ef14, ema, "
         "ef21"},
        {"codec = \"int8\"\nef = \"ef22\"",
         "p.toml:5:6: rule 'grads': bad value 'ef22' of 'ef' (did you mean 'ef21'?); accepted: "
         "none, ef14, ema, ef21"},
        {"codec = \"powersgd\"\nef = \"ef21\"",
         "p.toml:5:6: rule 'grads': ef21 with powersgd, whose factors follow a gradient by "
         "themselves; accepted: none, ef14, ema"},
        {"codec = \"linear_ae\"\nef = \"ef21\"",
         "p.toml:5:6: rule 'grads': ef21 with linear_ae, whose factors follow a gradient by "
         "themselves; accepted: none, ef14, ema"},
        {"codec = \"int4\"\nramp = 7",
         "p.toml:5:8: rule 'grads': 'ramp' is an integer; accepted: stages like [{ until = 500, "
         "codec = \"topk:fraction=0.1\" }]"},
        {"codec = \"native\"\nramp = [{ until = 5, codec = \"int8\" }]",
         "p.toml:5:8: rule 'grads': 'ramp' without a codec that it leads to; accepted: a 'codec', "
         "or no 'ramp'"},
        {"codec = \"int4\"\nramp = [{ until = 5 }]",
         "p.toml:5:9: rule 'grads': a stage of 'ramp' without 'until' and 'codec'; accepted: "
         "stages like [{ until = 500, codec = \"topk:fraction=0.1\" }]"},
        {"codec = \"int4\"\nstart_step = 5\nramp = [{ until = 5, codec = \"int8\" }]",
         "p.toml:6:19: rule 'grads': 'until' of 'ramp' accepts a number of calls above 5, which "
         "start_step or the stage before has"},
        {"codec = \"int4\"\nramp = [{ until = 5, codec = \"int8\", size = 3 }]",
         "p.toml:5:38: rule 'grads': unknown key 'size' of a stage of 'ramp'; accepted: until, "
         "codec"},
        {"match = { op = \"allreduce\" }\ncodec = \"int4\"\nef = \"ef14\"\naccordion = 7",
         "p.toml:7:13: rule 'grads': 'accordion' is an integer; accepted: a table like { low = "
         "\"powersgd:rank=4\", window = 390 }, with ratio, hysteresis and lr_drops"},
        {"match = { op = \"allreduce\" }\ncodec = \"int4\"\nef = \"ef14\"\n"
         "accordion = { low = \"int8\", window = 1 }",
         "p.toml:7:38: rule 'grads': 'window' of 'accordion' accepts a number from 2 to "
         "1099511627776"},
        {"match = { op = \"allreduce\" }\ncodec = \"int4\"\nef = \"ef14\"\n"
         "accordion = { low = \"int8\", window = 9, lr_drops = [5, 5] }",
         "p.toml:7:52: rule 'grads': 'lr_drops' of 'accordion' accepts ascending numbers of calls, "
         "like [58500, 97500]"},
        {"match = { op = \"allreduce\" }\ncodec = \"int4\"\n"
         "accordion = { low = \"int8\", window = 9 }",
         "p.toml:6:13: rule 'grads': 'accordion' without error feedback; accepted: error_feedback "
         "other than \"none\""},
        {"codec = \"int4\"\nef = \"ef14\"\naccordion = { low = \"int8\", window = 9 }",
         "p.toml:6:13: rule 'grads': 'accordion' in a rule of other operations than all-reduce and "
         "reduce-scatter, whose ranks do not all hear of the results; accepted: match = { op = "
         "\"allreduce\" }, \"reducescatter\", or both"},
        {"match = { op = \"reducescatter\" }\ncodec = \"int4\"\nef = \"ef14\"\nstep_ahead = 1",
         "p.toml:7:14: rule 'grads': 'step_ahead' is an integer; accepted: a table like { gain = "
         "1.0, step_size = \"estimated\" }, both of which may be left out"},
        {"match = { op = \"reducescatter\" }\ncodec = \"int4\"\nef = \"ef14\"\nstep_ahead = { gian "
         "= 1 }",
         "p.toml:7:16: rule 'grads': unknown key 'gian' of 'step_ahead' (did you mean 'gain'?); "
         "accepted: gain, step_size"},
        {"match = { op = \"reducescatter\" }\ncodec = \"int4\"\nef = \"ef14\"\nstep_ahead = { gain "
         "= 0 }",
         "p.toml:7:23: rule 'grads': 'gain' of 'step_ahead' accepts a number from 1e-6 to 100"},
        {"match = { op = \"reducescatter\" }\ncodec = \"int4\"\nef = \"ef14\"\nstep_ahead = { "
         "step_size = \"guessed\" }",
         "p.toml:7:28: rule 'grads': 'step_size' of 'step_ahead' accepts \"estimated\", \"told\" "
         "(slimwire_set_learning_rate) or a number from 1e-12 to 1e12"},
        {"match = { op = \"reducescatter\" }\ncodec = \"int4\"\nstep_ahead = {}",
         "p.toml:6:14: rule 'grads': 'step_ahead' without residuals; accepted: a codec with "
         "error_feedback ef14 or ema, or no 'step_ahead'"},
        {"match = { op = \"allreduce\" }\ncodec = \"int4\"\nef = \"ef14\"\nstep_ahead = {}",
         "p.toml:7:14: rule 'grads': 'step_ahead' of all-reduces, whose parameters the program "
         "moves by slimwire_step_ahead; accepted: step_size \"told\" or a number, and residual = "
         "\"fp32\""},
        {"match = { op = \"allreduce\" }\ncodec = \"int4\"\nef = \"ema\"\nstep_ahead = { step_size "
         "= 1 }",
         "p.toml:7:14: rule 'grads': 'step_ahead' of all-reduces, whose parameters the program "
         "moves by slimwire_step_ahead; accepted: step_size \"told\" or a number, and residual = "
         "\"fp32\""},
        {"match = { op = [\"allreduce\", \"reduce\"] }\ncodec = \"int4\"\nef = "
         "\"ef14\"\nstep_ahead = { step_size = 1 }",
         "p.toml:7:14: rule 'grads': 'step_ahead' in a rule of other operations than sums of "
         "gradients; accepted: match = { op = \"reducescatter\" }, or \"allreduce\""},
        {"match = { op = \"allreduce\" }\ncodec = \"int4\"\nef = \"ef14\"\naverage_every = 0",
         "p.toml:7:17: rule 'grads': 'average_every' accepts a number of calls of a tensor, 1 or "
         "more"},
        {"match = { op = \"allreduce\" }\ncodec = \"int4\"\naverage_every = 5",
         "p.toml:6:17: rule 'grads': 'average_every' without residuals; accepted: a codec with "
         "error_feedback ef14 or ema, or no 'average_every'"},
        {"match = { op = \"allreduce\" }\naverage_every = 5",
         "p.toml:5:17: rule 'grads': 'average_every' without residuals; accepted: a codec with "
         "error_feedback ef14 or ema, or no 'average_every'"},
        {"match = { op = \"allreduce\" }\ncodec = \"int4\"\nef = \"ef21\"\naverage_every = 5",
         "p.toml:7:17: rule 'grads': 'average_every' with ef21, whose estimates the ranks share; "
         "accepted: a codec with error_feedback ef14 or ema, or no 'average_every'"},
        {"match = { op = [\"allreduce\", \"send\"] }\ncodec = \"int4\"\nef = \"ef14\"\n"
         "average_every = 5",
         "p.toml:7:17: rule 'grads': 'average_every' in a rule of operations that sum nothing, "
         "whose ranks are owed for data of their own; accepted: match = { op = [\"allreduce\", "
         "\"reducescatter\", \"reduce\"] }, or some of them"},
        {"match = { op = \"allreduce\" }\ncodec = \"int4\"\nef = \"ef14\"\n"
         "intra_codec = \"int8\"\naverage_every = 5",
         "p.toml:8:17: rule 'grads': 'average_every' with intra_codec, where ranks owe both "
         "contributions and nodes' sums; accepted: one of them"},
        {"match = { op = \"allreduce\" }\ncodec = \"int4\"\nef = \"ef14\"\naverage_codec = "
         "\"int8\"",
         "p.toml:7:17: rule 'grads': 'average_codec' without 'average_every'; accepted: both, or "
         "an 'average_every' alone, which averages residuals as they are"},
        {"match = { op = \"allreduce\" }\ncodec = \"int4\"\nef = \"ef14\"\naverage_every = 5\n"
         "average_codec = \"powersgd\"",
         "p.toml:8:17: rule 'grads': average_codec 'powersgd', whose encodings of residuals have "
         "no sum; accepted: native, or a codec that quantises or keeps the largest, like int8"},
        {"codec = \"powersgd\"\nalgorithm = \"gather\"",
         "p.toml:5:13: rule 'grads': algorithm 'gather' with codec 'powersgd'; accepted: auto, "
         "low_rank"},
        {"codec = \"int8\"\nintra_codec = \"powersgd\"",
         "p.toml:5:15: rule 'grads': intra_codec 'powersgd', which is for whole messages; "
         "accepted: any other codec"},
        {"codec = \"int8\"\nintra_codec = \"int8:row=64\"",
         "p.toml:5:15: rule 'grads': intra_codec 'int8:row=64', which is for whole messages; "
         "accepted: any other codec"},
        {"codec = \"int8\"\nef = \"ef21\"\nresidual = \"bf16\"",
         "p.toml:6:12: rule 'grads': 'residual' with ef21, whose estimates must not be rounded; "
         "accepted: residual = \"fp32\", or no 'residual'"},
        {"match = { op = \"allreduce\" }\ncodec = \"int4\"\nef = \"ef14\"\n"
         "accordion = { low = \"native\", window = 9 }",
         "p.toml:7:13: rule 'grads': 'low' of 'accordion' is native; accepted: a codec"},
        {"match = { op = \"allreduce\" }\ncodec = \"int4\"\nef = \"ef14\"\n"
         "accordion = { low = \"topk:fraction=0.1\", window = 9 }",
         "p.toml:7:13: rule 'grads': 'low' = 'topk:fraction=0.1' of 'accordion' keeps residuals "
         "otherwise than codec 'int4'; accepted: another int4"},
        {"match = { op = \"allreduce\" }\ncodec = \"int4\"\npreview = {}",
         "p.toml:6:1: rule 'grads': unknown key 'preview' of a rule; it was removed: it is called "
         "step_ahead; accepted: name, match, codec, algorithm, error_feedback, start_step, "
         "min_bytes, intra_codec, ef, residual, ramp, accordion, average_every, average_codec, "
         "step_ahead, pairing, forward_calls, recomputed, early_stop"},
        {"codec = \"int8\"\nef = \"ef14\"\nresidual = \"int4\"",
         "p.toml:6:12: rule 'grads': bad value 'int4' of 'residual' (did you mean 'int8'?); "
         "accepted: fp32, bf16, int8"},
        {"codec = \"int8\"\nef = \"ef14\"\nerror_feedback = \"ef14\"",
         "p.toml:5:6: rule 'grads': 'ef' and 'error_feedback' are the same key; accepted: one of "
         "them"},
        {"codec = \"int8\"\nstart_step = -1",
         "p.toml:5:14: rule 'grads': bad value '-1' of 'start_step'; accepted: 0 or more"},
        {"codec = \"int8\"\nstart_step = 1.5",
         "p.toml:5:14: rule 'grads': 'start_step' is a floating-point number; accepted: a number "
         "of steps, 0 or more"},
        {"codec = \"int8\"\nmin_bytes = \"1 parsec\"",
         "p.toml:5:13: rule 'grads': bad value of 'min_bytes': size '1 parsec': unknown unit "
         "'parsec'; accepted: a number of bytes or one with KiB, MiB, GiB or TiB, like 64KiB"},
        {"codec = \"int8\"\nmin_bytes = -5",
         "p.toml:5:13: rule 'grads': bad value '-5' of 'min_bytes'; accepted: 0 or more"},
    };
    for (const Case& c : kCases) {
        EXPECT_EQ(error_of(std::string(kHead) + c.text + "\n"), c.expected);
    }
}

TEST(PolicyErrors, unknown_codec_names_it_and_where) {
    const std::string message = error_of(std::string(kHead) + "codec = \"int5\"\n");
    EXPECT_EQ(message.rfind("p.toml:4:9: rule 'grads': bad value 'int5' of 'codec': ", 0), 0u)
        << message;
    EXPECT_NE(message.find("int8"), std::string::npos) << message;
}

TEST(PolicyErrors, what_cannot_work_together) {
    const Case kCases[] = {
        {"ef = \"ef14\"",
         "p.toml:4:6: rule 'grads': error feedback without a codec; accepted: a codec, or "
         "error_feedback = \"none\""},
        {"codec = \"native\"\nerror_feedback = \"ef14\"",
         "p.toml:5:18: rule 'grads': error feedback without a codec; accepted: a codec, or "
         "error_feedback = \"none\""},
        {"codec = \"int8\"\nresidual = \"bf16\"",
         "p.toml:5:12: rule 'grads': 'residual' without error feedback; accepted: error_feedback "
         "other than \"none\", or no 'residual'"},
        {"codec = \"native\"\nalgorithm = \"two_shot\"",
         "p.toml:5:13: rule 'grads': algorithm 'two_shot' without a codec; accepted: auto, native, "
         "or a codec"},
        {"codec = \"int8\"\nalgorithm = \"native\"",
         "p.toml:4:9: rule 'grads': codec with algorithm = \"native\"; accepted: one of them"},
        {"match = { op = [\"allreduce\", \"send\"] }\ncodec = \"topk:pair=mask\"",
         "p.toml:5:9: rule 'grads': codec 'topk:pair=mask' in a rule of operations that no call "
         "answers, like an all-reduce, and so none shares its mask; accepted: match = { op = "
         "[\"send\", \"recv\"] }, \"alltoall\", [\"allgather\", \"reducescatter\"], or pair=none"},
        {"match = { op = \"allgather\" }\ncodec = \"topk:pair=mask\"\nforward_calls = 2",
         "p.toml:5:9: rule 'grads': codec 'topk:pair=mask' in a rule of one of all-gather and "
         "reduce-scatter, each of which answers the other; accepted: match = { op = "
         "[\"allgather\", \"reducescatter\"] }, or pair=none"},
        {"match = { op = [\"alltoall\", \"send\"] }\ncodec = \"topk:pair=mask\"",
         "p.toml:5:9: rule 'grads': codec 'topk:pair=mask' in a rule of collectives without "
         "'forward_calls', of which nothing else tells the answers; accepted: forward_calls = 1 "
         "where each is answered before the next, or how many come before their answers, or "
         "pair=none"},
        {"match = { op = [\"allgather\", \"reducescatter\"], redop = \"sum\" }\n"
         "codec = \"topk:pair=mask\"\nforward_calls = 2\nalgorithm = \"hierarchical\"",
         "p.toml:7:13: rule 'grads': algorithm 'hierarchical' with codec 'topk:pair=mask', whose "
         "masks pairs of ranks share; accepted: auto, direct, or pair=none"},
        {"match = { op = \"alltoall\" }\ncodec = \"topk\"\nforward_calls = 2",
         "p.toml:6:17: rule 'grads': 'forward_calls' without calls that answer each other; "
         "accepted: a codec topk, threshold or randomk with pair=mask, linear_ae of all-to-alls or "
         "all-gathers and reduce-scatters, match = { direction = \"forward\" } or \"backward\", "
         "match = { ordinal = \"12-\" }, or no 'forward_calls'"},
        {"match = { op = \"allgather\" }\ncodec = \"linear_ae:row=64\"\nforward_calls = 2",
         "p.toml:5:9: rule 'grads': codec 'linear_ae:row=64' in a rule of one of all-gather and "
         "reduce-scatter, each of which answers the other; accepted: match = { op = "
         "[\"allgather\", \"reducescatter\"] }, or pair=none"},
        {"match = { op = \"alltoall\" }\ncodec = \"topk:pair=mask\"\nforward_calls = 65",
         "p.toml:6:17: rule 'grads': 'forward_calls' accepts how many calls go forward before "
         "their answers come, 1 to 64"},
        {"match = { op = \"send\" }\ncodec = \"topk:pair=mask\"\nforward_calls = 2\npairing = 2",
         "p.toml:6:17: rule 'grads': 'forward_calls' with chunks of a pipeline ('pairing'); "
         "accepted: one of them"},
        {"match = { op = \"allreduce\" }\ncodec = \"linear_ae:row=64,average=dp\"",
         "p.toml:5:9: rule 'grads': codec 'linear_ae:row=64,average=dp' in a rule without calls "
         "that answer each other, whose autoencoders alone copies average; accepted: match = { op "
         "= [\"send\", \"recv\"] }, collectives with 'forward_calls', or average=none"},
        {"match = { op = \"send\" }\ncodec = \"topk:pair=mask\"\nef = \"ef14\"",
         "p.toml:6:6: rule 'grads': error feedback with codec 'topk:pair=mask': activations and "
         "their gradients are of one step alone; accepted: error_feedback = \"none\", or "
         "pair=none"},
        {"match = { op = \"send\" }\ncodec = \"topk:pair=mask\"\nstart_step = 3",
         "p.toml:6:14: rule 'grads': 'start_step' with codec 'topk:pair=mask', whose answers would "
         "be to messages without a mask; accepted: start_step = 0, or pair=none"},
        {"match = { op = \"send\" }\ncodec = \"powersgd\"\nef = \"ef14\"",
         "p.toml:5:9: rule 'grads': codec 'powersgd' in a rule of operations of which nothing "
         "tells the shapes, as DDP tells those of gradients in all-reduces; accepted: row=, the "
         "elements of a row, of activations the hidden size"},
        {"match = { op = [\"allgather\", \"reducescatter\"] }\ncodec = \"linear_ae\"\n"
         "forward_calls = 2",
         "p.toml:5:9: rule 'grads': codec 'linear_ae' in a rule of operations of which nothing "
         "tells the shapes, as DDP tells those of gradients in all-reduces; accepted: row=, the "
         "elements of a row, of activations the hidden size"},
        {"match = { op = \"send\" }\ncodec = \"powersgd:row=64\"\nstart_step = 3",
         "p.toml:6:14: rule 'grads': 'start_step' with codec 'powersgd:row=64' of calls that "
         "answer each other, of which the first would lack what they answer; accepted: start_step "
         "= 0, or a rule of other operations, like all-reduces"},
        {"match = { op = \"send\" }\ncodec = \"int8\"\n"
         "ramp = [{ until = 30, codec = \"powersgd:rank=8\" }]",
         "p.toml:6:8: rule 'grads': 'ramp' with factors or an autoencoder of calls that answer "
         "each other, which go by one codec; accepted: a rule of other operations, like "
         "all-reduces, or no 'ramp'"},
        {"match = { op = \"send\", ordinal = \"0-7\" }\ncodec = \"topk:pair=mask\"",
         "p.toml:4:34: rule 'grads': 'ordinal' with codec 'topk:pair=mask' of messages between "
         "stages, which are micro-batches and no layers, and whose ends count answers each for "
         "itself; accepted: exchanges with 'forward_calls', other operations, like all-reduces, "
         "pair=none, or no 'ordinal', where 'comm' tells stages apart"},
        {"match = { op = \"alltoall\" }\ncodec = \"topk:pair=mask\"\nforward_calls = 4\n"
         "recomputed = 3",
         "p.toml:7:14: rule 'grads': 'recomputed' divides 'forward_calls', whose answers come "
         "behind each so many that are made again; accepted: forward_calls that are a multiple of "
         "it, or no 'recomputed'"},
        {"match = { op = \"alltoall\" }\ncodec = \"topk:pair=mask\"\nforward_calls = 4\n"
         "recomputed = 2\nearly_stop = 2",
         "p.toml:8:14: rule 'grads': 'early_stop' leaves out some of those that are made again at "
         "a time; accepted: less than 'recomputed', or no 'early_stop'"},
        {"match = { op = \"allgather\", ordinal = \"2-\" }\ncodec = \"int8\"\nforward_calls = 4",
         "p.toml:4:39: rule 'grads': 'ordinal' with 'forward_calls' in a rule of one of all-gather "
         "and reduce-scatter, each of which answers the other; accepted: match = { op = "
         "[\"allgather\", \"reducescatter\"] }, or no 'forward_calls'"},
        {"match = { op = \"allreduce\", ordinal = \"2-\" }\ncodec = \"int8\"\nforward_calls = 4",
         "p.toml:6:17: rule 'grads': 'forward_calls' without calls that answer each other; "
         "accepted: a codec topk, threshold or randomk with pair=mask, linear_ae of all-to-alls or "
         "all-gathers and reduce-scatters, match = { direction = \"forward\" } or \"backward\", "
         "match = { ordinal = \"12-\" }, or no 'forward_calls'"},
        {"match = { op = \"send\", direction = \"forward\" }\ncodec = \"topk:pair=mask\"",
         "p.toml:4:36: rule 'grads': 'direction' with codec 'topk:pair=mask', which takes messages "
         "and their answers; accepted: no 'direction', or pair=none"},
        {"match = { op = \"send\" }\ncodec = \"topk\"\npairing = \"lifo\"",
         "p.toml:6:11: rule 'grads': 'pairing' without masks that messages share; accepted: a "
         "codec topk, threshold or randomk with pair=mask, powersgd or linear_ae of messages, or "
         "no 'pairing'"},
        {"match = { op = \"send\", direction = \"forward\" }\ncodec = \"linear_ae:row=64\"",
         "p.toml:4:36: rule 'grads': 'direction' with codec 'linear_ae:row=64', which takes "
         "messages and their answers; accepted: no 'direction'"},
        {"match = { op = \"send\" }\ncodec = \"topk:pair=mask\"\npairing = \"last\"",
         "p.toml:6:11: rule 'grads': 'pairing' accepts \"auto\", \"fifo\", \"lifo\", or the number "
         "of chunks of layers that a stage has, from 2 to 64"},
        {"match = { op = \"send\" }\ncodec = \"topk:pair=mask\"\npairing = 2.5",
         "p.toml:6:11: rule 'grads': bad value '2.5' of 'pairing'; accepted: a whole number of "
         "chunks from 2 to 64, or \"auto\", \"fifo\", \"lifo\""},
        {"match = { redop = [\"sum\", \"max\"] }\ncodec = \"int8\"",
         "p.toml:4:19: rule 'grads': a codec cannot reduce by max; accepted: sum, avg, premulsum"},
        {"match = { dtype = [\"f32\", \"i64\"] }\ncodec = \"int8\"",
         "p.toml:4:19: rule 'grads': codec 'int8' does not take i64; accepted: f16, f32, bf16"},
    };
    for (const Case& c : kCases) {
        EXPECT_EQ(error_of(std::string(kHead) + c.text + "\n"), c.expected);
    }
}

}  // namespace
}  // namespace slimwire
