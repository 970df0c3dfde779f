// What both kernels of top-k take; dsv4_rocm.kernels.indexer_select.hip_selection has the same struct.
#pragma once

#include <dsv4/device.hpp>

namespace dsv4::topk {

struct Params {
  Global<const float> scores;           // [rows, stride]
  Global<const std::int64_t> positions;  // [rows]: the row sees min((position + 1) / ratio, width) scores
  Global<const std::int64_t> request;    // [rows]: none of them where this is not below `requests`
  Global<std::uint32_t> keys;            // [rows, segments, k] best of each segment, as ordered integers, then 0
  Global<std::int32_t> ids;              // [rows, segments, k] and their ids
  Global<std::uint32_t> maxima;          // [rows, segments, 128] highest keys of 128 groups of scores
  Global<std::int32_t> out;              // [rows, k] ids in ascending order, then -1
  std::int64_t stride;
  std::int32_t width;
  std::int32_t k;
  std::int32_t ratio;
  std::int32_t requests;
  std::int32_t segments;
};

}  // namespace dsv4::topk
