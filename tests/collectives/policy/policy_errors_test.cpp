// Every way to write a policy wrong, its rules and the file around them, ends in one line that says
// where, what and what is accepted; and every word that slimwire no longer takes in an error that
// says what to do instead.
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <random>
#include <span>
#include <string>

#include "codecs/base/removed_words.h"
#include "codecs/codec.h"
#include "collectives/policy/config.h"
#include "collectives/policy/policy.h"
#include "tests/support/seed.h"

namespace slimwire {
namespace {

std::string error_of(const std::string& text) {
    const auto policy = parse_policy(text, "p.toml");
    EXPECT_FALSE(policy.ok()) << text;
    const std::string message = policy.status().message();
    EXPECT_EQ(policy.status().code(), policy.ok() ? Code::kOk : Code::kInvalidArgument);
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
}

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
        {"4:19", "match = { param = 1 }",
         "'param' is an integer; accepted: a string or an array of: 1d, 2d"},
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

struct FileCase {
    std::string text;
    const char* wrong;  // begin of the message, from the line on
};

// `head` stands in front of each.
void expect_errors(const std::string& head, std::initializer_list<FileCase> cases) {
    for (const FileCase& one : cases) {
        const std::string begin = std::string("p.toml:") + one.wrong;
        const std::string message = error_of(head + one.text + "\n");
        EXPECT_EQ(message.substr(0, begin.size()), begin) << message;
    }
}

TEST(PolicyFileErrors, the_file_around_the_rules) {
    expect_errors("", {{"", "1:1: missing key 'version'; accepted: version = 1"},
                       {"version = 2", "1:11: unknown version 2; accepted: 1"},
                       {"version = '1'", "1:11: 'version' is a string; accepted: 1"},
                       {"version = 1\n[[rule]\nname = 'a'", "2:"},
                       {"version = 1\nversion = 1", "2:"},
                       {std::string("\xff\xfev\0e\0", 6),
                        "1:1: the file is UTF-16, as some editors and "
                        "shells write it; accepted: UTF-8"}});
    expect_errors(
        "version = 1\n",
        {{"rules = []",
          "2:1: unknown key 'rules' of the file (did you mean 'rule'?); accepted: "
          "version, defaults, rule, runtime"},
         {"[rule]\nname = 'a'", "2:1: 'rule' is a table; accepted: an array of tables: [[rule]]"},
         {"rule = [1]", "2:9: 'rule' is an integer; accepted: an array of tables: [[rule]]"},
         {"defaults = 1", "2:12: 'defaults' is an integer; accepted: a table: [defaults]"},
         {"[[rule]]\ncodec = 'int8'", "2:1: rule 1: missing key 'name'; accepted: 1 to 64 letters"},
         {"[[rule]]\nname = 'a,b'", "3:8: rule 1: bad value 'a,b' of 'name'; accepted: 1 to 64"},
         {"[[rule]]\nname = 'env'",
          "3:8: rule 1: the name 'env' belongs to the rule that "
          "SLIMWIRE_CODEC makes; accepted: any other name"},
         {"[[rule]]\nname = 'a'\n[[rule]]\nname = 'a'",
          "5:8: rule 2: duplicate name 'a', first used by the rule in line 2; accepted: unique"}});
    const std::string rule = "\n[[rule]]\nname = 'a'\ncodec = ";
    expect_errors(
        "version = 1\n[defaults]\n",
        {{"match = {}",
          "3:1: [defaults]: unknown key 'match' of [defaults]; accepted: codec, "
          "algorithm, error_feedback, start_step, min_bytes, intra_codec, ef"},
         {"residual = 'int8'" + rule + "'int4'\nef = 'ef21'",
          "4:1: rule 'a': 'residual' with ef21, whose estimates must not be rounded"},
         {"intra_codec = 'powersgd'" + rule + "'int4'\n[[rule]]\nname = 'b'\ncodec = 'native'",
          "4:1: rule 'a': intra_codec 'powersgd', which is for whole messages"},
         {"intra_codec = 'topk:pair=mask'" + rule + "'int4'",
          "4:1: rule 'a': intra_codec 'topk:pair=mask' with pair=mask, which is for messages"},
         {"algorithm = 'gather'" + rule + "'powersgd'",
          "4:1: rule 'a': algorithm 'gather' with codec 'powersgd'; accepted: auto, low_rank"}});
}

TEST(PolicyFileErrors, several_findings_make_one_line) {
    const std::string message =
        error_of("[[rule]]\nname = \"a\"\ncodek = 1\nalgorithm = 3\nef = 4\nstart_step = \"x\"\n");
    EXPECT_NE(message.find("p.toml:1:1: missing key 'version'"), std::string::npos) << message;
    EXPECT_NE(message.find("p.toml:3:1: rule 'a': unknown key 'codek'"), std::string::npos);
    EXPECT_NE(message.find("; and 2 more"), std::string::npos) << message;
}

TEST(PolicyFileErrors, values_without_quotes) {
    constexpr char kHead[] = "version = 1\n[[rule]]\nname = \"a\"\n";
    const std::pair<std::string, std::string> kCases[] = {
        {"codec = int4", "int4"},
        {"codec = int8:block=64  # as it was", "int8:block=64"},
        {"codec = topk:fraction=0.01", "topk:fraction=0.01"},
        {"codec = native\r\nmin_bytes = 7", "native"},
        {"match = { op = allreduce }", "allreduce"},
        {"match = { op = [\"reduce\", allreduce] }", "allreduce"},
        {"error_feedback=ef14", "ef14"},
        {"min_bytes = 64KiB", "64KiB"},
        {"match = { op = \"reduce\", bytes = 1MiB.. }", "1MiB.."},
        {"codec = 8bit", "8bit"}};
    for (const auto& [line, word] : kCases) {
        const std::string message = error_of(kHead + line + "\n");
        EXPECT_EQ(message.substr(0, 9), "p.toml:4:") << message;
        const std::string text = "'" + word + "' is a text and has no quotes; accepted: \"" + word;
        EXPECT_NE(message.find(text + "\""), std::string::npos) << message;
    }
    // Other faults keep the parser's words.
    for (const char* line : {"codec = \"int4", "codec = 1.2.3", "codec == \"int4\"", "codec", "[a",
                             "[[rule]", " [[ rule ]", "min_bytes = 0x", "min_bytes = 1e"}) {
        const std::string message = error_of(kHead + std::string(line) + "\n");
        EXPECT_EQ(message.find("no quotes"), std::string::npos) << message;
    }
}

TEST(PolicyFileErrors, quotes_that_are_none_or_do_not_end) {
    expect_errors(
        "version = 1\n[[rule]]\nname = \"a\"\n",
        {{"codec = \u201cint4\u201d", "4:9: quotes of a word processor, \u201c; accepted: \" or '"},
         {"codec = \"int4\nmin_bytes = 7",
          "4:14: a text that does not end in its line; accepted: a closing quote"},
         {"codec = 'int4\r\nmin_bytes = 7",
          "4:14: a text that does not end in its line; accepted: a closing quote"},
         {"codec = \"\x1b[1mint4\"", "4:10: a control character in a text; accepted: as \\u001b"},
         {"codec = \"\\nt4\"", "4:9: rule 'a': bad value '\\x0at4' of 'codec'"}});
}

TEST(PolicyFileErrors, a_key_that_is_there_twice) {
    for (const char* line : {"match = { op = \"allreduce\", op = \"reduce\" }",
                             "codec = \"int4\"\ncodec = \"int8\""}) {
        const std::string message =
            error_of("version = 1\n[[rule]]\nname = \"a\"\n" + std::string(line) + "\n");
        EXPECT_EQ(message.find("no quotes"), std::string::npos) << message;
        EXPECT_NE(message.find("; accepted: each key once"), std::string::npos) << message;
    }
}

TEST(PolicyFileErrors, more_rules_than_a_call_should_be_compared_with) {
    std::string text = "version = 1\n";
    for (int i = 0; i <= 1000; ++i) {
        text += "[[rule]]\nname = \"r" + std::to_string(i) + "\"\ncodec = \"int8\"\n";
    }
    EXPECT_EQ(error_of(text),
              "p.toml:2:1: 1001 rules, which each new kind of call is compared with in turn; "
              "accepted: at most 1000");
}

TEST(PolicyFileErrors, files_that_cannot_be_read_and_their_names) {
    const std::string path = testing::TempDir() + "slimwire_policy_" + std::to_string(::getpid());
    const auto expect = [](const std::string& file, const std::string& why) {
        const auto policy = load_policy_file(file);
        ASSERT_FALSE(policy.ok()) << file;
        EXPECT_EQ(policy.status().code(), Code::kNotFound);
        EXPECT_EQ(policy.status().message(), "policy file '" + file + "' cannot be read: " + why +
                                                 "; accepted: the path of a readable TOML file");
    };
    expect("/nonexistent/p.toml", "No such file or directory");
    expect("/tmp", "Is a directory");
    expect("/dev/zero", "it is no regular file");
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    expect(path, "it is no regular file");
    ::unlink(path.c_str());
    std::ofstream(path) << "version = 1\n#" << std::string(1 << 20, '.') << "\n";
    expect(path, "it has more than 1048576 bytes");
    std::ofstream(path) << "version = 3\n";
    EXPECT_EQ(load_policy_file(path).status().message(),
              path + ":1:11: unknown version 3; accepted: 1");
    ::unlink(path.c_str());
}

// Bytes changed, dropped, doubled or inserted anywhere: a policy or one line that says where.
TEST(PolicyFileErrors, damaged_files_give_a_policy_or_a_place) {
    const std::string whole =
        "version = 1\n[defaults]\nmin_bytes = \"64KiB\"\n[[rule]]\nname = \"a\"\nmatch = { op = "
        "[\"allreduce\", \"reduce\"], dtype = \"f32\", bytes = \"1MiB..2MiB\", ranks = \"2..16\", "
        "scope = \"inter_node\", param = [\"1d\", \"3d+\"], index = [3, \"10-20\"], ordinal = "
        "\"0-3\", name = \"*.bias\" }\ncodec = \"int4:block=64\"\nerror_feedback = "
        "\"ef14\"\nstart_step = 10\n"
        "[[rule]]\nname = \"b\"\nalgorithm = \"native\"\n";
    ASSERT_TRUE(parse_policy(whole, "p.toml").ok());
    const uint64_t seed = test_seed();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    int refused = 0;
    for (int round = 0; round < 3000; ++round) {
        std::string text = whole;
        for (uint64_t edits = 1 + random() % 3; edits > 0; --edits) {
            const size_t at = random() % text.size();
            const char byte = random() % 2 == 0 ? "\"'[]{}=.,\n0-#e"[random() % 14]
                                                : static_cast<char>(random() % 256);
            switch (random() % 4) {
                case 0:
                    text[at] = byte;
                    break;
                case 1:
                    text.erase(at, 1 + random() % 8);
                    break;
                case 2:
                    text.insert(at, text.substr(at, random() % 40));
                    break;
                case 3:
                    text.insert(at, 1, byte);
                    break;
            }
            text += text.empty() ? "x" : "";
        }
        const auto policy = parse_policy(text, "p.toml");
        if (!policy.ok()) {
            ++refused;
            const std::string message = policy.status().message();
            ASSERT_EQ(message.rfind("p.toml:", 0), 0u) << message << "\n" << text;
            ASSERT_EQ(message.find('\n'), std::string::npos) << message << "\n" << text;
        }
    }
    EXPECT_GT(refused, 1000);
}

std::string error_of_policy(const std::string& rule) {
    return parse_policy("version = 1\n" + rule, "p.toml").status().message();
}

// The errors about the word, at every place where a user could have given it.
std::string errors_about(const RemovedWord& removed) {
    const std::string word(removed.word);
    const std::string rule = "[[rule]]\ncodec = \"int4\"\n";
    switch (removed.kind) {
        case RemovedKind::kCodec:
            return parse_codec(word).status().message();
        case RemovedKind::kCodecParameter:
            return parse_codec("int4:" + word + "=1").status().message();
        case RemovedKind::kPolicyKey:
            return error_of_policy(rule + word + " = 1\n") + error_of_policy(word + " = 1\n") +
                   error_of_policy(rule + "match = { " + word + " = 1 }\n");
        case RemovedKind::kPolicyValue: {
            const std::string key = word.substr(0, word.find('='));
            const std::string line =
                key + " = \"" + word.substr(std::min(key.size() + 1, word.size())) + "\"";
            return error_of_policy("[[rule]]\n" + line + "\n") +
                   error_of_policy(rule + line + "\n") +
                   error_of_policy(rule + "match = { " + line + " }\n");
        }
        case RemovedKind::kVariable: {
            const std::string entry = word + "=1";
            const char* const environment[] = {entry.c_str(), nullptr};
            return check_variable_names(environment).message();
        }
        case RemovedKind::kReportVariable: {
            const std::string entry = word + "=1";
            const char* const environment[] = {entry.c_str(), nullptr};
            testing::internal::CaptureStderr();
            EXPECT_TRUE(check_variable_names(environment).ok());
            return testing::internal::GetCapturedStderr();
        }
    }
    return {};
}

TEST(RemovedWords, errors_say_what_to_do_instead) {
    for (const RemovedWord& removed : kRemovedWords) {
        const std::string errors = errors_about(removed);
        EXPECT_NE(errors.find("; it was removed: " + std::string(removed.hint)), std::string::npos)
            << removed.word << ": " << errors;
    }
    EXPECT_EQ(removed_hint(RemovedKind::kCodec, "int4"), "");
}

}  // namespace
}  // namespace slimwire
