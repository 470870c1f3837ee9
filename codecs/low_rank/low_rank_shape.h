// The order in which the sums of low_rank.h are taken, shared by host bodies and kernels. Read by
// objects of any instruction set: constants alone.
#pragma once

#include <cstdint>

namespace slimwire {

inline constexpr int kMostRank = 32;
// Sums are of fp32 fused multiply-adds in a fixed order. Columns of M that one sum of M Q takes:
// column j is added by lane j mod kRankLanes, of the last lanes missing ones as zeros; lanes are
// added in pairs (the first half and the second half, again and again), and the sums of all runs of
// columns in their order.
inline constexpr int kRankLanes = 32;
inline constexpr int kRankColumns = 1024;
// Rows of M that one sum of M^T P takes, row after row; then the sums of all runs in their order.
inline constexpr int kRankRows = 256;
// A column of P is taken as depending on those before it when less than this part of its squared
// length is left beside them: 2^-36.
inline constexpr double kRankDependent = 0x1p-36;
// What sums of factors may be above the largest that numbers within the type's range give, for
// their own roundings.
inline constexpr float kRankTolerance = 1 + 0x1p-10f;

}  // namespace slimwire
