// The sum of rows on the host, in one pass: a step of 64 elements is read from every row, added in
// registers and written once, so that whole lines of each row are used and the output may be one
// of the rows. Included by sum_rows.cpp inside its anonymous namespace.

constexpr int kSumGroups = 4;  // of sixteen lanes in a step

template <class Input, class Output, int kGroups>
SLIMWIRE_LANES void sum_step(const SumRowsArgs& args, Floats scale, int64_t i) {
    const uint8_t* row = static_cast<const uint8_t*>(args.input) + i * Input::kBytes;
    const Floats input_scale = broadcast(args.input_scale);
    Floats sum[kGroups];
    for (int g = 0; g < kGroups; ++g) {
        sum[g] = multiply(input_scale, Input::load(row + g * kLanes * Input::kBytes));
    }
    for (int32_t r = 1; r < args.rows; ++r) {
        row += args.row_bytes;
        for (int g = 0; g < kGroups; ++g) {
            sum[g] =
                multiply_add(input_scale, Input::load(row + g * kLanes * Input::kBytes), sum[g]);
        }
    }
    const SumWithin within(args.sum_limit);
    uint8_t* to = static_cast<uint8_t*>(args.output) + i * Output::kBytes;
    for (int g = 0; g < kGroups; ++g) {
        Output::store(to + g * kLanes * Output::kBytes, canonical(multiply(scale, within(sum[g]))));
    }
}

template <class Input, class Output>
void sum_rows_as(const SumRowsArgs& args) {
    const Floats scale = broadcast(args.scale);
    int64_t i = 0;
    for (; i + kSumGroups * kLanes <= args.count; i += kSumGroups * kLanes) {
        sum_step<Input, Output, kSumGroups>(args, scale, i);
    }
    for (; i + kLanes <= args.count; i += kLanes) {
        sum_step<Input, Output, 1>(args, scale, i);
    }
    if (i < args.count) {
        const int64_t left = args.count - i;
        const uint8_t* row = static_cast<const uint8_t*>(args.input) + i * Input::kBytes;
        const Floats input_scale = broadcast(args.input_scale);
        Floats sum = multiply(input_scale, load_some<Input>(row, left));
        for (int32_t r = 1; r < args.rows; ++r) {
            row += args.row_bytes;
            sum = multiply_add(input_scale, load_some<Input>(row, left), sum);
        }
        const SumWithin within(args.sum_limit);
        store_some<Output>(static_cast<uint8_t*>(args.output) + i * Output::kBytes,
                           canonical(multiply(scale, within(sum))), left);
    }
}

void sum_rows(const SumRowsArgs& args) {
    visit(args.input_dtype, [&](auto input) {
        visit(args.output_dtype,
              [&](auto output) { sum_rows_as<decltype(input), decltype(output)>(args); });
    });
}
