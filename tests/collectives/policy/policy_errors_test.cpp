// Every way to write a rule of a policy wrong ends in one line that says where, what and what is
// accepted; of the file around the rules: policy_file_errors_test.cpp.
#include <gtest/gtest.h>

#include <span>

#include "tests/collectives/policy_error.h"

namespace slimwire {
namespace {

struct RuleCase {
    const char* place;  // line and column
    const char* text;   // behind a rule's name
    const char* wrong;  // begin of the message: what is wrong
};

void expect_errors(std::span<const RuleCase> cases) {
    for (const RuleCase& one : cases) {
        const std::string message =
            error_of("version = 1\n[[rule]]\nname = \"grads\"\n" + std::string(one.text) + "\n");
        const std::string begin =
            std::string("p.toml:") + one.place + ": rule 'grads': " + one.wrong;
        EXPECT_EQ(message.substr(0, begin.size()), begin) << message;
        EXPECT_NE(message.find("accept", message.find("rule")), std::string::npos) << message;
    }
}

TEST(PolicyErrors, inside_a_rule) {
    const RuleCase kCases[] = {
        {"4:1", "codek = 'int4'",
         "unknown key 'codek' of a rule (did you mean 'codec'?); accepted: name, match, codec, "
         "algorithm, error_feedback, start_step, min_bytes, intra_codec, ef, residual, ramp, "
         "accordion, average_every, average_codec, step_ahead, pairing, forward_calls, recomputed, "
         "early_stop"},
        {"4:11", "match = { opp = 'allreduce' }",
         "unknown key 'opp' of match (did you mean 'op'?)"},
        {"4:16", "match = { op = 'alreduce' }",
         "bad value 'alreduce' of 'op' (did you mean 'allreduce'?)"},
        {"4:16", "match = { op = 3 }", "'op' is an integer"},
        {"4:19", "match = { dtype = [] }", "'dtype' is an array"},
        {"4:27", "match = { dtype = ['f32', 'f33'] }",
         "bad value 'f33' of 'dtype' (did you mean 'f32'?)"},
        {"4:19", "match = { redop = 'mean' }", "bad value 'mean' of 'redop'"},
        {"4:19", "match = { scope = 'rack' }", "bad value 'rack' of 'scope'"},
        {"4:26", "match = { param = ['1d', '6d'] }", "bad value '6d' of 'param'"},
        {"4:19", "match = { param = 1 }", "'param' is an integer"},
        {"4:23", "match = { index = [1, '9-3'] }", "bad value '9-3' of 'index'"},
        {"4:25", "match = { ordinal = [0, '5-3'] }", "bad value '5-3' of 'ordinal'"},
        {"4:23", "match = { direction = 'up', op = 'send' }", "bad value 'up' of 'direction'"},
        {"4:23", "match = { direction = 'forward' }\ncodec = 'int8'",
         "'direction' in a rule of operations that no call answers"},
        {"4:45", "match = { op = 'reducescatter', direction = 'backward' }\nforward_calls = 1",
         "'direction' in a rule of one of all-gather and reduce-scatter"},
        {"4:50", "match = { op = ['alltoall', 'send'], direction = 'backward' }",
         "'direction' in a rule of collectives without 'forward_calls'"},
        {"4:21", "match = { ordinal = true }", "'ordinal' is a boolean"},
        {"4:18", "match = { comm = [] }", "'comm' is an array"},
        {"4:18", "match = { role = 'ddp' }", "bad value 'ddp' of 'role' (did you mean 'dp'?)"},
        {"4:18", "match = { name = '' }", "bad value '' of 'name'"},
        {"4:18", "match = { name = 3 }", "'name' is an integer"},
        {"4:19", "match = { bytes = '1MiB' }", "bad value '1MiB' of 'bytes': not a range"},
        {"4:19", "match = { bytes = '1MiB..4KiB' }",
         "bad value '1MiB..4KiB' of 'bytes': the first end is above the second"},
        {"4:19", "match = { bytes = '1MB..' }",
         "bad value '1MB..' of 'bytes': size '1MB': unknown unit 'mb'"},
        {"4:19", "match = { bytes = 1048576 }", "'bytes' is an integer"},
        {"4:19", "match = { ranks = 'two..4' }",
         "bad value 'two..4' of 'ranks': 'two' is not a number of ranks"},
        {"4:19", "match = { ranks = 0 }", "bad value '0' of 'ranks'"},
        {"4:9", "match = 'allreduce'", "'match' is a string"},
        {"4:9", "codec = 4", "'codec' is an integer"},
        {"5:13", "codec = 'int8'\nalgorithm = 'ring'", "bad value 'ring' of 'algorithm'"},
        {"5:18", "codec = 'int8'\nerror_feedback = true", "'error_feedback' is a boolean"},
        {"5:6", "codec = 'int8'\nef = 'ef22'", "bad value 'ef22' of 'ef' (did you mean 'ef21'?)"},
        {"5:6", "codec = 'powersgd'\nef = 'ef21'",
         "ef21 with powersgd, whose factors follow a gradient by themselves"},
        {"5:8", "codec = 'int4'\nramp = 7", "'ramp' is an integer"},
        {"5:8", "codec = 'native'\nramp = [{ until = 5, codec = 'int8' }]",
         "'ramp' without a codec that it leads to"},
        {"5:9", "codec = 'int4'\nramp = [{ until = 5 }]",
         "a stage of 'ramp' without 'until' and 'codec'"},
        {"6:19", "codec = 'int4'\nstart_step = 5\nramp = [{ until = 5, codec = 'int8' }]",
         "'until' of 'ramp' accepts a number of calls above 5"},
        {"5:38", "codec = 'int4'\nramp = [{ until = 5, codec = 'int8', size = 3 }]",
         "unknown key 'size' of a stage of 'ramp'"},
        {"7:13", "match = { op = 'allreduce' }\ncodec = 'int4'\nef = 'ef14'\naccordion = 7",
         "'accordion' is an integer"},
        {"7:38",
         "match = { op = 'allreduce' }\ncodec = 'int4'\nef = 'ef14'\naccordion = { low = 'int8', "
         "window = 1 }",
         "'window' of 'accordion' accepts a number from 2 to 1099511627776"},
        {"7:52",
         "match = { op = 'allreduce' }\ncodec = 'int4'\nef = 'ef14'\naccordion = { low = 'int8', "
         "window = 9, lr_drops = [5, 5] }",
         "'lr_drops' of 'accordion' accepts ascending numbers of calls"},
        {"6:13",
         "match = { op = 'allreduce' }\ncodec = 'int4'\naccordion = { low = 'int8', window = 9 }",
         "'accordion' without error feedback"},
        {"6:13", "codec = 'int4'\nef = 'ef14'\naccordion = { low = 'int8', window = 9 }",
         "'accordion' in a rule of other operations than all-reduce and reduce-scatter"},
        {"7:14", "match = { op = 'reducescatter' }\ncodec = 'int4'\nef = 'ef14'\nstep_ahead = 1",
         "'step_ahead' is an integer"},
        {"7:16",
         "match = { op = 'reducescatter' }\ncodec = 'int4'\nef = 'ef14'\nstep_ahead = { gian = 1 }",
         "unknown key 'gian' of 'step_ahead' (did you mean 'gain'?)"},
        {"7:23",
         "match = { op = 'reducescatter' }\ncodec = 'int4'\nef = 'ef14'\nstep_ahead = { gain = 0 }",
         "'gain' of 'step_ahead' accepts a number from 1e-6 to 100"},
        {"7:28",
         "match = { op = 'reducescatter' }\ncodec = 'int4'\nef = 'ef14'\nstep_ahead = { step_size "
         "= 'guessed' }",
         "'step_size' of 'step_ahead' accepts \"estimated\", \"told\" (slimwire_set_learning_rate) "
         "or a number from 1e-12 to 1e12"},
        {"6:14", "match = { op = 'reducescatter' }\ncodec = 'int4'\nstep_ahead = {}",
         "'step_ahead' without residuals"},
        {"7:14", "match = { op = 'allreduce' }\ncodec = 'int4'\nef = 'ef14'\nstep_ahead = {}",
         "'step_ahead' of all-reduces, whose parameters the program moves by slimwire_step_ahead"},
        {"7:14",
         "match = { op = 'allreduce' }\ncodec = 'int4'\nef = 'ema'\nstep_ahead = { step_size = 1 }",
         "'step_ahead' of all-reduces, whose parameters the program moves by slimwire_step_ahead"},
        {"7:14",
         "match = { op = ['allreduce', 'reduce'] }\ncodec = 'int4'\nef = 'ef14'\nstep_ahead = { "
         "step_size = 1 }",
         "'step_ahead' in a rule of other operations than sums of gradients"},
        {"7:17", "match = { op = 'allreduce' }\ncodec = 'int4'\nef = 'ef14'\naverage_every = 0",
         "'average_every' accepts a number of calls of a tensor, 1 or more"},
        {"6:17", "match = { op = 'allreduce' }\ncodec = 'int4'\naverage_every = 5",
         "'average_every' without residuals"},
        {"7:17", "match = { op = 'allreduce' }\ncodec = 'int4'\nef = 'ef21'\naverage_every = 5",
         "'average_every' with ef21, whose estimates the ranks share"},
        {"7:17",
         "match = { op = ['allreduce', 'send'] }\ncodec = 'int4'\nef = 'ef14'\naverage_every = 5",
         "'average_every' in a rule of operations that sum nothing"},
        {"8:17",
         "match = { op = 'allreduce' }\ncodec = 'int4'\nef = 'ef14'\nintra_codec = "
         "'int8'\naverage_every = 5",
         "'average_every' with intra_codec"},
        {"7:17",
         "match = { op = 'allreduce' }\ncodec = 'int4'\nef = 'ef14'\naverage_codec = 'int8'",
         "'average_codec' without 'average_every'"},
        {"8:17",
         "match = { op = 'allreduce' }\ncodec = 'int4'\nef = 'ef14'\naverage_every = "
         "5\naverage_codec = 'powersgd'",
         "average_codec 'powersgd', whose encodings of residuals have no sum"},
        {"5:13", "codec = 'powersgd'\nalgorithm = 'gather'",
         "algorithm 'gather' with codec 'powersgd'"},
        {"5:15", "codec = 'int8'\nintra_codec = 'powersgd'",
         "intra_codec 'powersgd', which is for whole messages"},
        {"5:15", "codec = 'int8'\nintra_codec = 'int8:row=64'",
         "intra_codec 'int8:row=64', which is for whole messages"},
        {"6:12", "codec = 'int8'\nef = 'ef21'\nresidual = 'bf16'",
         "'residual' with ef21, whose estimates must not be rounded"},
        {"7:13",
         "match = { op = 'allreduce' }\ncodec = 'int4'\nef = 'ef14'\naccordion = { low = 'native', "
         "window = 9 }",
         "'low' of 'accordion' is native"},
        {"7:13",
         "match = { op = 'allreduce' }\ncodec = 'int4'\nef = 'ef14'\naccordion = { low = "
         "'topk:fraction=0.1', window = 9 }",
         "'low' = 'topk:fraction=0.1' of 'accordion' keeps residuals otherwise than codec 'int4'"},
        {"6:12", "codec = 'int8'\nef = 'ef14'\nresidual = 'int4'",
         "bad value 'int4' of 'residual' (did you mean 'int8'?)"},
        {"5:6", "codec = 'int8'\nef = 'ef14'\nerror_feedback = 'ef14'",
         "'ef' and 'error_feedback' are the same key"},
        {"5:14", "codec = 'int8'\nstart_step = -1", "bad value '-1' of 'start_step'"},
        {"5:14", "codec = 'int8'\nstart_step = 1.5", "'start_step' is a floating-point number"},
        {"5:13", "codec = 'int8'\nmin_bytes = '1 parsec'",
         "bad value of 'min_bytes': size '1 parsec': unknown unit 'parsec'"},
        {"5:13", "codec = 'int8'\nmin_bytes = -5", "bad value '-5' of 'min_bytes'"},
    };
    expect_errors(kCases);
}

TEST(PolicyErrors, unknown_codec_names_it_and_where) {
    const std::string message =
        error_of("version = 1\n[[rule]]\nname = \"grads\"\ncodec = \"int5\"\n");
    EXPECT_EQ(message.rfind("p.toml:4:9: rule 'grads': bad value 'int5' of 'codec': ", 0), 0u)
        << message;
    EXPECT_NE(message.find("int8"), std::string::npos) << message;
}

TEST(PolicyErrors, what_cannot_work_together) {
    const RuleCase kCases[] = {
        {"4:6", "ef = 'ef14'", "error feedback without a codec"},
        {"5:12", "codec = 'int8'\nresidual = 'bf16'", "'residual' without error feedback"},
        {"5:13", "codec = 'native'\nalgorithm = 'two_shot'",
         "algorithm 'two_shot' without a codec"},
        {"4:9", "codec = 'int8'\nalgorithm = 'native'", "codec with algorithm = \"native\""},
        {"5:9", "match = { op = ['allreduce', 'send'] }\ncodec = 'topk:pair=mask'",
         "codec 'topk:pair=mask' in a rule of operations that no call answers"},
        {"5:9", "match = { op = 'allgather' }\ncodec = 'topk:pair=mask'\nforward_calls = 2",
         "codec 'topk:pair=mask' in a rule of one of all-gather and reduce-scatter"},
        {"5:9", "match = { op = ['alltoall', 'send'] }\ncodec = 'topk:pair=mask'",
         "codec 'topk:pair=mask' in a rule of collectives without 'forward_calls'"},
        {"7:13",
         "match = { op = ['allgather', 'reducescatter'], redop = 'sum' }\ncodec = "
         "'topk:pair=mask'\nforward_calls = 2\nalgorithm = 'hierarchical'",
         "algorithm 'hierarchical' with codec 'topk:pair=mask'"},
        {"6:17", "match = { op = 'alltoall' }\ncodec = 'topk'\nforward_calls = 2",
         "'forward_calls' without calls that answer each other"},
        {"5:9", "match = { op = 'allgather' }\ncodec = 'linear_ae:row=64'\nforward_calls = 2",
         "codec 'linear_ae:row=64' in a rule of one of all-gather and reduce-scatter"},
        {"6:17", "match = { op = 'alltoall' }\ncodec = 'topk:pair=mask'\nforward_calls = 65",
         "'forward_calls' accepts how many calls go forward before their answers come, 1 to 64"},
        {"6:17",
         "match = { op = 'send' }\ncodec = 'topk:pair=mask'\nforward_calls = 2\npairing = 2",
         "'forward_calls' with chunks of a pipeline ('pairing')"},
        {"5:9", "match = { op = 'allreduce' }\ncodec = 'linear_ae:row=64,average=dp'",
         "codec 'linear_ae:row=64,average=dp' in a rule without calls that answer each other"},
        {"6:6", "match = { op = 'send' }\ncodec = 'topk:pair=mask'\nef = 'ef14'",
         "error feedback with codec 'topk:pair=mask'"},
        {"6:14", "match = { op = 'send' }\ncodec = 'topk:pair=mask'\nstart_step = 3",
         "'start_step' with codec 'topk:pair=mask'"},
        {"5:9", "match = { op = 'send' }\ncodec = 'powersgd'\nef = 'ef14'",
         "codec 'powersgd' in a rule of operations of which nothing tells the shapes"},
        {"5:9",
         "match = { op = ['allgather', 'reducescatter'] }\ncodec = 'linear_ae'\nforward_calls = 2",
         "codec 'linear_ae' in a rule of operations of which nothing tells the shapes"},
        {"6:14", "match = { op = 'send' }\ncodec = 'powersgd:row=64'\nstart_step = 3",
         "'start_step' with codec 'powersgd:row=64' of calls that answer each other"},
        {"6:8",
         "match = { op = 'send' }\ncodec = 'int8'\nramp = [{ until = 30, codec = 'powersgd:rank=8' "
         "}]",
         "'ramp' with factors or an autoencoder of calls that answer each other"},
        {"4:34", "match = { op = 'send', ordinal = '0-7' }\ncodec = 'topk:pair=mask'",
         "'ordinal' with codec 'topk:pair=mask' of messages between stages"},
        {"7:14",
         "match = { op = 'alltoall' }\ncodec = 'topk:pair=mask'\nforward_calls = 4\nrecomputed = 3",
         "'recomputed' divides 'forward_calls'"},
        {"8:14",
         "match = { op = 'alltoall' }\ncodec = 'topk:pair=mask'\nforward_calls = 4\nrecomputed = "
         "2\nearly_stop = 2",
         "'early_stop' leaves out some of those that are made again at a time"},
        {"4:39", "match = { op = 'allgather', ordinal = '2-' }\ncodec = 'int8'\nforward_calls = 4",
         "'ordinal' with 'forward_calls' in a rule of one of all-gather and reduce-scatter"},
        {"6:17", "match = { op = 'allreduce', ordinal = '2-' }\ncodec = 'int8'\nforward_calls = 4",
         "'forward_calls' without calls that answer each other"},
        {"4:36", "match = { op = 'send', direction = 'forward' }\ncodec = 'topk:pair=mask'",
         "'direction' with codec 'topk:pair=mask'"},
        {"6:11", "match = { op = 'send' }\ncodec = 'topk'\npairing = 'lifo'",
         "'pairing' without masks that messages share"},
        {"4:36", "match = { op = 'send', direction = 'forward' }\ncodec = 'linear_ae:row=64'",
         "'direction' with codec 'linear_ae:row=64'"},
        {"6:11", "match = { op = 'send' }\ncodec = 'topk:pair=mask'\npairing = 'last'",
         "'pairing' accepts \"auto\", \"fifo\", \"lifo\", or the number of chunks of layers that a "
         "stage has, from 2 to 64"},
        {"6:11", "match = { op = 'send' }\ncodec = 'topk:pair=mask'\npairing = 2.5",
         "bad value '2.5' of 'pairing'"},
        {"4:19", "match = { redop = ['sum', 'max'] }\ncodec = 'int8'",
         "a codec cannot reduce by max"},
        {"4:19", "match = { dtype = ['f32', 'i64'] }\ncodec = 'int8'",
         "codec 'int8' does not take i64"},
    };
    expect_errors(kCases);
}

}  // namespace
}  // namespace slimwire
