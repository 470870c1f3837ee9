// What a rule does, from TOML: codecs and their files, ramps, accordions, error feedback. What
// cannot work together is for the parser to say, but for previews and loss scales. Included by
// policy_parser.cpp alone.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "codecs/low_rank/low_rank.h"
#include "collectives/policy/policy.h"
#include "collectives/policy/policy_reader.h"

namespace slimwire {

class PolicyActionReader : protected PolicyReader {
  protected:
    using PolicyReader::PolicyReader;

    void read_codec(const toml::table& table, const char* key, std::optional<CodecSpec>* out) {
        const toml::node* node = table.get(key);
        if (node == nullptr) {
            return;
        }
        if (!node->is_string()) {
            wrong_type(*node, key, "'native' or a codec");
        } else if (Result<std::optional<CodecSpec>> codec =
                       parse_codec_or_native(node->as_string()->get());
                   codec.ok()) {
            *out = codec.value();
        } else {
            report(node->source(), "bad value " + quoted(node->as_string()->get()) + " of '" + key +
                                       "': " + codec.status().message());
        }
    }

    void read_action(const toml::table& table, Action* action) {
        read_codec(table, "codec", &action->codec);
        read_codec(table, "intra_codec", &action->intra_codec);
        if (const auto value = read_one(table, "algorithm", parse_algorithm, algorithm_names())) {
            action->algorithm = *value;
        }
        if (table.contains("ef") && table.contains("error_feedback")) {
            report(table.get("ef")->source(),
                   "'ef' and 'error_feedback' are the same key; accepted: one of them");
        }
        for (const char* key : {"error_feedback", "ef"}) {
            if (const auto value =
                    read_one(table, key, parse_error_feedback, error_feedback_names())) {
                action->error_feedback = *value;
            }
        }
        if (action->replicated_state()) {
            action->tensor = TensorBy::kStep;
        }
        if (const auto value = read_one(table, "tensor", parse_tensor_by, tensor_by_names())) {
            action->tensor = *value;
        }
        if (const auto value =
                read_one(table, "residual", parse_residual_type, residual_type_names())) {
            action->residual = *value;
        }
        if (const toml::node* node = table.get("start_step")) {
            if (!node->is_integer()) {
                wrong_type(*node, "start_step", "a number of steps, 0 or more");
            } else if (node->as_integer()->get() < 0) {
                report(node->source(), "bad value " +
                                           quoted(std::to_string(node->as_integer()->get())) +
                                           " of 'start_step'; accepted: 0 or more");
            } else {
                action->start_step = static_cast<uint64_t>(node->as_integer()->get());
            }
        }
        if (const toml::node* node = table.get("min_bytes")) {
            action->auto_bytes = node->value<std::string>().value_or("") == "auto";
            if (action->auto_bytes) {
                action->min_bytes = 0;
            } else {
                read_size(*node, "min_bytes", &action->min_bytes);
            }
        }
        read_ramp(table, action);
        read_accordion(table, action);
        read_averaging(table, action);
        read_preview(table, action);
    }

    void read_preview(const toml::table& table, Action* action) {
        const toml::node* node = table.get("preview");
        if (node == nullptr) {
            return;
        }
        static const Names keys = {"gain", "step_size"};
        const toml::table* of = node->as_table();
        if (of == nullptr) {
            return wrong_type(*node, "preview",
                              "a table like { gain = 1.0, step_size = \"estimated\" }, both of "
                              "which may be left out");
        }
        check_keys(*of, keys, "'preview'");
        StepAheadRule rule;
        if (const toml::node* gain = of->get("gain")) {
            const double value = gain->value<double>().value_or(0);
            if (!(value >= 1e-6 && value <= 100)) {
                report(gain->source(), "'gain' of 'preview' accepts a number from 1e-6 to 100");
            } else {
                rule.gain_ppm = static_cast<uint32_t>(value * 1e6 + 0.5);
            }
        }
        if (const toml::node* size = of->get("step_size")) {
            const std::string word = size->value<std::string>().value_or("");
            rule.told = word == "told";
            rule.step_size = word.empty() ? size->value<double>().value_or(0) : 0;
            if (!rule.told && word != "estimated" &&
                !(rule.step_size >= 1e-12 && rule.step_size <= 1e12)) {
                report(size->source(),
                       "'step_size' of 'preview' accepts \"estimated\", \"told\" "
                       "(slimwire_set_learning_rate) or a number from 1e-12 to 1e12");
            }
        }
        action->preview = rule;
        if (!table.contains("tensor")) {
            action->tensor = TensorBy::kStep;
        }
    }

    void check_preview(const toml::table& table, bool native, const Rule& rule) {
        const Action& action = rule.action;
        const toml::node* node = table.get("preview");
        if (node == nullptr || !action.preview.has_value()) {
            return;
        }
        if (native || action.low_rank() ||
            (action.error_feedback != ErrorFeedback::kEf14 &&
             action.error_feedback != ErrorFeedback::kEma)) {
            report(node->source(),
                   "'preview' without residuals; accepted: a codec with error_feedback ef14 or "
                   "ema, or no 'preview'");
        } else if ((rule.match.ops & ~(bit_of(Op::kReduceScatter) | bit_of(Op::kAllReduce))) != 0) {
            report(node->source(),
                   "'preview' in a rule of other operations than sums of gradients; accepted: "
                   "match = { op = \"reducescatter\" }, or \"allreduce\"");
        } else if ((rule.match.ops & bit_of(Op::kAllReduce)) != 0 &&
                   ((action.preview->step_size == 0 && !action.preview->told) ||
                    action.residual_type() != ResidualType::kFloat32)) {
            report(node->source(),
                   "'preview' of all-reduces, whose parameters the program moves by "
                   "slimwire_step_ahead; accepted: step_size \"told\" or a number, and residual = "
                   "\"fp32\"");
        } else if (action.tensor != TensorBy::kStep) {
            report(node->source(),
                   "'preview' with tensor = \"address\", by which gathers find nothing; "
                   "accepted: tensor = \"step\", or no 'tensor'");
        }
    }

    void read_averaging(const toml::table& table, Action* action) {
        read_codec(table, "average_codec", &action->average_codec);
        const toml::node* node = table.get("average_every");
        if (node == nullptr) {
            return;
        }
        const int64_t value = node->is_integer() ? node->as_integer()->get() : 0;
        if (value < 1 || value > int64_t{1} << 40) {
            return report(node->source(),
                          "'average_every' accepts a number of calls of a tensor, 1 or more");
        }
        action->average_every = static_cast<uint64_t>(value);
        if (!table.contains("tensor")) {
            action->tensor = TensorBy::kStep;
        }
    }

    // An integer of at least `least`. `owner`: the key whose table it is in, as messages name it.
    void read_count(const toml::table& table,
                    const char* key,
                    const char* owner,
                    int64_t least,
                    int64_t most,
                    uint64_t* out) {
        const toml::node* node = table.get(key);
        if (node == nullptr) {
            return;
        }
        const int64_t value = node->is_integer() ? node->as_integer()->get() : least - 1;
        if (value < least || value > most) {
            return report(node->source(), quoted(key) + owner + " accepts a number from " +
                                              std::to_string(least) + " to " +
                                              std::to_string(most));
        }
        *out = static_cast<uint64_t>(value);
    }

    void read_accordion(const toml::table& table, Action* action) {
        const toml::node* node = table.get("accordion");
        if (node == nullptr) {
            return;
        }
        static const Names keys = {"low", "window", "ratio", "hysteresis", "lr_drops"};
        const std::string accepted =
            "a table like { low = \"powersgd:rank=4\", window = 390 }, with ratio, hysteresis and "
            "lr_drops";
        const toml::table* of = node->as_table();
        if (of == nullptr) {
            return wrong_type(*node, "accordion", accepted);
        }
        check_keys(*of, keys, "'accordion'");
        if (!of->contains("low") || !of->contains("window")) {
            return report(node->source(),
                          "'accordion' without 'low' or 'window'; accepted: " + accepted);
        }
        std::optional<CodecSpec> low;
        read_codec(*of, "low", &low);
        if (!low.has_value()) {
            if (findings_.empty()) {
                report(of->get("low")->source(),
                       "'low' of 'accordion' is native; accepted: a codec");
            }
            return;
        }
        AccordionRule rule;
        rule.low = *low;
        constexpr int64_t kMost = int64_t{1} << 40;
        read_count(*of, "window", " of 'accordion'", 2, kMost, &rule.window);
        uint64_t hysteresis = rule.hysteresis;
        read_count(*of, "hysteresis", " of 'accordion'", 1, 1000, &hysteresis);
        rule.hysteresis = static_cast<uint32_t>(hysteresis);
        if (const toml::node* ratio = of->get("ratio")) {
            const double value = ratio->value<double>().value_or(0);
            if (!(value >= 1e-6 && value <= 10)) {
                report(ratio->source(), "'ratio' of 'accordion' accepts a number from 1e-6 to 10");
            } else {
                rule.ratio_ppm = static_cast<uint32_t>(value * 1e6 + 0.5);
            }
        }
        if (const toml::node* drops = of->get("lr_drops")) {
            const toml::array* array = drops->as_array();
            bool good = array != nullptr;
            for (size_t i = 0; good && i < array->size(); ++i) {
                const int64_t value =
                    (*array)[i].is_integer() ? (*array)[i].as_integer()->get() : -1;
                good = value >= 0 && (rule.lr_drops.empty() ||
                                      static_cast<uint64_t>(value) > rule.lr_drops.back());
                rule.lr_drops.push_back(static_cast<uint64_t>(value));
            }
            if (!good) {
                report(drops->source(),
                       "'lr_drops' of 'accordion' accepts ascending numbers of calls, like [58500, "
                       "97500]");
            }
        }
        action->accordion = std::move(rule);
        if (!table.contains("tensor")) {
            action->tensor = TensorBy::kStep;
        }
    }

    void read_ramp(const toml::table& table, Action* action) {
        const toml::node* node = table.get("ramp");
        if (node == nullptr) {
            return;
        }
        static const Names keys = {"until", "codec"};
        const std::string accepted = "stages like [{ until = 500, codec = \"topk:fraction=0.1\" }]";
        const toml::array* stages = node->as_array();
        if (stages == nullptr || stages->empty()) {
            return wrong_type(*node, "ramp", accepted);
        }
        if (!action->codec) {
            return report(node->source(),
                          "'ramp' without a codec that it leads to; accepted: a "
                          "'codec', or no 'ramp'");
        }
        uint64_t least = action->start_step;
        for (const toml::node& element : *stages) {
            const toml::table* of = element.as_table();
            if (of == nullptr || !of->contains("until") || !of->contains("codec")) {
                return report(element.source(),
                              "a stage of 'ramp' without 'until' and 'codec'; "
                              "accepted: " +
                                  accepted);
            }
            check_keys(*of, keys, "a stage of 'ramp'");
            const toml::node& until = *of->get("until");
            const int64_t value = until.is_integer() ? until.as_integer()->get() : -1;
            if (value < 0 || static_cast<uint64_t>(value) <= least) {
                return report(until.source(), "'until' of 'ramp' accepts a number of calls above " +
                                                  std::to_string(least) +
                                                  ", which start_step or the stage before has");
            }
            RampStage stage;
            stage.until = least = static_cast<uint64_t>(value);
            read_codec(*of, "codec", &stage.codec);
            action->ramp.push_back(std::move(stage));
        }
    }
};

}  // namespace slimwire
