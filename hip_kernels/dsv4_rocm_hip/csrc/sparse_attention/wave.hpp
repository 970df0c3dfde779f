// One wave of the attention of 16 * TILES query rows; a row is a head of a token. Eight waves share a tile of 32 keys:
//   scores  wave w multiplies channels 128 (w % 4) .. with keys 16 (w / 4) .., key bytes straight from global memory;
//           the four partial scores of a 16 x 16 tile meet in LDS, where one of the four waves sums them up;
//   weights the tile's wave takes exp2 and leaves bf16 in LDS, in the layout the next product reads;
//   values  wave w multiplies channels 64 w .. of all keys, the same bytes loaded a second time as 4 keys x 4 channels
//           a lane, so that dequantizing packs and transposes them at once.
// Keys and values never lie in LDS. Channels 448 .. are bf16 and not scaled: RopeScores and RopeValues mark the waves
// that meet them. `Sharing`: the rows are of several tokens, each with keys of its own among those read.
#pragma once

#include "dsv4/bf16.hpp"
#include "dsv4/fp8.hpp"
#include "dsv4/mfma.hpp"
#include "dsv4/rotary.hpp"
#include "dsv4/softmax.hpp"
#include "keys.hpp"

namespace dsv4::sparse_attention {

inline constexpr int kWaves = 8;
inline constexpr int kGroup = cache::kFp8Group;
inline constexpr int kScoreChannels = 128;  // of a wave
inline constexpr int kSlices = kChannels / kScoreChannels;
inline constexpr int kMostTokens = 8;  // of a workgroup

template <int TILES>
struct Lds {
  float4 scores[2 * TILES][kSlices - 1][64];  // partial, of the waves that do not sum them
  int2 weights[2 * TILES][64];
  std::uint64_t row[2][kTileKeys];  // two tiles of each, by parity
  std::uint64_t exponents[2][kTileKeys];
  float scale[2][kWaves][kTileKeys];
  float bias[4][kTileKeys];
  float best[2][16 * TILES];  // of the scores of half a tile
  float total[2][16 * TILES];
  float reference[16 * TILES], sink[16 * TILES];
  int raise[2];  // whether some score passed its reference by too much
};

template <int TILES, bool RopeScores, bool RopeValues, bool Sharing, bool Scrub>
class Wave {
 public:
  DSV4_MEMBER Wave(const Params &params, Lds<TILES> &lds, int wave, int token, int first_head, int split)
      : params_(params),
        lds_(lds),
        wave_(wave),
        slice_(wave % kSlices),
        half_(wave / kSlices),
        own_(slice_ % TILES),
        sums_(slice_ < TILES),
        column_(lane() & 15),
        quarter_(lane() >> 4),
        token_(token),
        first_head_(first_head),
        split_(split),
        range_(key_range(params, token, Sharing ? params.group_tokens : 1, split)) {}

  DSV4_MEMBER void run() {
    clear();
    if (range_.begin < range_.end) {
      load_query();
      start_pipeline();
      for (int tile = range_.begin; tile < range_.end; ++tile) attend(tile);
    }
    write_result();
  }

 private:
  const Params &params_;
  Lds<TILES> &lds_;
  const int wave_, slice_, half_;
  const int own_;  // the row tile whose scores this wave sums up, if `sums_`
  const bool sums_;
  const int column_, quarter_;  // of a matrix operand
  const int token_, first_head_, split_;
  const KeyRange range_;
  RowFinder finder_;  // only wave 7 looks for rows

  int4 query_[TILES][2][2];              // row tiles from `own_` on, two groups of 64 channels
  int4 key_[RopeScores ? 3 : 2];         // 16 bytes a group; the rotary part takes two
  int value_[2][4][RopeValues ? 2 : 1];  // 16 keys, 4 keys a lane, 4 channels
  std::uint32_t exponent_;
  float4 result_[TILES][4];
  float4 score_;  // of the own row tile
  float reference_, total_;
  int first_visible_, visible_;  // positions of the lane's row and how many; `Sharing` only
  int visible_entries_;

  struct Place {
    int token, head;  // the token counts from the workgroup's first
    int cell;         // token * heads + head
    bool live;
  };

  // The row tile at place `step` of this wave's order; the own one comes first.
  DSV4_MEMBER int row_tile(int step) const { return (step + own_) % TILES; }

  // Rows past the last read the last one's query and are not stored.
  DSV4_MEMBER Place place_of(int row) const {
    if (!Sharing) {
      const int head = min(first_head_ + row, params_.heads - 1);
      return {0, head, head, first_head_ + row < params_.heads};
    }
    const int rows = params_.group_tokens * params_.heads, inside = min(row, rows - 1);
    const int token = inside * params_.heads_reciprocal >> 16;
    return {token, inside - token * params_.heads, inside, row < rows};
  }

  DSV4_MEMBER void clear() {
    for (int step = 0; step < TILES; ++step)
      for (int c = 0; c < 4; ++c) result_[step][c] = float4{0, 0, 0, 0};
    total_ = 0;
    const Place place = place_of(own_ * 16 + column_);
    const float sink = params_.sink[place.head];
    reference_ = sink_reference(sink);
    if (Sharing) {
      const int position = position_of(params_, token_ + place.token);
      first_visible_ = window_first(position);
      visible_ = position + 1 - first_visible_;
      visible_entries_ = visible_entries(params_, position);
    }
    if (sums_ && half_ == 0 && lane() < 16) {
      lds_.reference[own_ * 16 + lane()] = reference_;
      lds_.sink[own_ * 16 + lane()] = sink;
    }
    if (thread() < 2) lds_.raise[thread()] = 0;
  }

  DSV4_MEMBER void load_query() {
    const auto first = reinterpret_cast<std::uint64_t>(params_.query + token_ * params_.query_stride);
    for (int step = 0; step < TILES; ++step) {
      const Place place = place_of(row_tile(step) * 16 + column_);
      const int channel = place.token * static_cast<int>(params_.query_stride) + place.head * kChannels +
                          slice_ * kScoreChannels + 16 * quarter_;
      for (int group = 0; group < 2; ++group)
        for (int part = 0; part < 2; ++part)
          query_[step][group][part] = load<int4>(first + static_cast<unsigned>(channel * sizeof(bf16)) +
                                                 (kGroup * group + 8 * part) * sizeof(bf16));
    }
  }

  // What a tile needs is asked for a tile or more before: tile `begin` is loaded, the rows of the next one are known,
  // of the one after the blocks are on their way, then the ids.
  DSV4_MEMBER void start_pipeline() {
    const int tile = range_.begin;
    if (RopeValues) {
      RowFinder finder[3];
      for (int ahead = 0; ahead < 3; ++ahead)
        finder[ahead].load_id(params_, range_, token_, tile + ahead, lane() % kTileKeys);
      for (int ahead = 0; ahead < 3; ++ahead) finder[ahead].load_block(params_, range_, tile + ahead);
      for (int ahead = 0; ahead < 2; ++ahead) store_rows(finder[ahead], tile + ahead);
      finder_ = finder[2];
      finder_.load_id(params_, range_, token_, tile + 3, lane() % kTileKeys);
    }
    barrier();
    load_exponents(tile);
    load_keys(tile);
    load_values(tile);
    store_scales(tile);
    load_exponents(tile + 1);
    barrier();
  }

  DSV4_MEMBER void attend(int tile) {
    multiply_keys(tile);
    load_keys(tile + 1);
    barrier();
    float added = 0;
    if (sums_) added = weigh(tile);
    if (RopeValues) store_rows(finder_, tile + 2);
    store_scales(tile + 1);
    if (thread() == 0) lds_.raise[(tile + 1) & 1] = 0;
    barrier();
    if (unlikely(uniform(lds_.raise[tile & 1]))) added = raise_reference(tile);
    total_ += added;
    load_exponents(tile + 2);
    if (RopeValues) {
      finder_.load_block(params_, range_, tile + 3);
      finder_.load_id(params_, range_, token_, tile + 4, lane() % kTileKeys);
    }
    multiply_values(tile);
  }

  DSV4_MEMBER void store_rows(RowFinder &finder, int tile) {
    if (lane() >= kTileKeys) return;
    finder.find_address(params_, range_, tile);
    lds_.row[tile & 1][lane()] = finder.row;
    lds_.exponents[tile & 1][lane()] = finder.exponents;
    lds_.bias[tile & 3][lane()] = finder.bias;
  }

  DSV4_MEMBER void load_exponents(int tile) {
    if (!RopeValues) exponent_ = load<std::uint8_t>(lds_.exponents[tile & 1][lane() % kTileKeys] + wave_);
  }
  DSV4_MEMBER void store_scales(int tile) {
    if (!RopeValues && lane() < kTileKeys) lds_.scale[tile & 1][wave_][lane()] = scale_of(exponent_);
  }

  DSV4_MEMBER void load_keys(int tile) {
    const std::uint64_t row = lds_.row[tile & 1][half_ * 16 + column_];
    const std::uint64_t group = row + static_cast<unsigned>(slice_ * kScoreChannels + 16 * quarter_);
    key_[0] = load<int4>(group);
    if (RopeScores) {
      const std::uint64_t rope = row + static_cast<unsigned>(Row::kRopeOffset + 32 * quarter_);
      key_[1] = load<int4>(rope);
      key_[RopeScores ? 2 : 0] = load<int4>(rope + 16);
    } else {
      key_[1] = load<int4>(group + kGroup);
    }
  }

  DSV4_MEMBER void load_values(int tile) {
    for (int half = 0; half < 2; ++half)
      for (int j = 0; j < 4; ++j) {
        const std::uint64_t row = lds_.row[tile & 1][half * 16 + 4 * quarter_ + j];
        if (RopeValues) {
          const auto channels = load<int2>(row + static_cast<unsigned>(Row::kRopeOffset + 8 * column_));
          value_[half][j][0] = channels.x;
          value_[half][j][RopeValues ? 1 : 0] = channels.y;
        } else {
          value_[half][j][0] = load<int>(row + static_cast<unsigned>(kGroup * wave_ + 4 * column_));
        }
      }
  }

  // Partial scores of all row tiles; the own one stays in registers.
  DSV4_MEMBER void multiply_keys(int tile) {
    const auto &scale = lds_.scale[tile & 1];
    int4 key[2][2];
    float4 scales[2];
    for (int group = 0; group < (RopeScores ? 1 : 2); ++group) {
      const float *row = &scale[2 * slice_ + group][half_ * 16];
      // CDNA4 scales the key as it converts, CDNA3 the scores of the group.
      const float of_key = kConvertsFnuz ? 1.0f : row[column_];
      if (kConvertsFnuz) scales[group] = *reinterpret_cast<const float4 *>(&row[4 * quarter_]);
      for (int i = 0; i < 4; ++i) {
        const int bytes = Scrub ? scrub(key_[group][i]) : key_[group][i];
        key[group][i / 2][i % 2 * 2] = dequantize2<false>(bytes, of_key);
        key[group][i / 2][i % 2 * 2 + 1] = dequantize2<true>(bytes, of_key);
      }
    }
    if (RopeScores) {
      key[1][0] = key_[1];
      key[1][1] = key_[RopeScores ? 2 : 0];
    }
    for (int step = 0; step < TILES; ++step) {
      float4 sum = multiply_group(key[0], query_[step][0], float4{0, 0, 0, 0});
      if (!kConvertsFnuz) {
        sum = multiply_group(key[1], query_[step][1], sum);
      } else if (RopeScores) {
        sum = multiply_group(key[1], query_[step][1], sum * scales[0]);
      } else {
        const float4 other = multiply_group(key[1], query_[step][1], float4{0, 0, 0, 0});
        sum = sum * scales[0] + other * scales[1];
      }
      if (step == 0) score_ = sum;
      if (step > 0 || !sums_) {
        const int tile_of_rows = row_tile(step);
        lds_.scores[half_ * TILES + tile_of_rows][(slice_ - tile_of_rows - 1) & 3][lane()] = sum;
      }
    }
  }

  DSV4_MEMBER float4 multiply_group(const int4 (&key)[2], const int4 (&query)[2], float4 sum) const {
    return mfma_bf16(key[1], query[1], mfma_bf16(key[0], query[0], sum));
  }

  // 0 for a key that counts, else -inf, for the lane's four keys.
  DSV4_MEMBER float4 bias(int tile) const {
    const int key = half_ * 16 + 4 * quarter_;
    if (!Sharing) return *reinterpret_cast<const float4 *>(&lds_.bias[tile & 3][key]);
    const bool in_window = tile < range_.window_tiles;
    const int place = (in_window ? tile : tile - range_.window_tiles) * kTileKeys + key;
    const int past_first = place + (in_window ? range_.first - first_visible_ : 0);
    const int count = in_window ? visible_ : visible_entries_;
    float4 out;
    for (int i = 0; i < 4; ++i)
      out[i] = static_cast<std::uint32_t>(past_first + i) < static_cast<std::uint32_t>(count) ? 0 : -__builtin_inff();
    return out;
  }

  // Weights of the own row tile, to LDS; returns the lane's sum of them.
  DSV4_MEMBER float store_weights(float4 offset) {
    float4 weight;
    for (int i = 0; i < 4; ++i) weight[i] = exp2(score_[i] * (params_.scale * kLog2E) + offset[i]);
    lds_.weights[half_ * TILES + own_][lane()] = {round2(weight[0], weight[1]), round2(weight[2], weight[3])};
    return (weight[0] + weight[1]) + (weight[2] + weight[3]);
  }

  DSV4_MEMBER float best(float4 offset) const {
    float4 x;
    for (int i = 0; i < 4; ++i) x[i] = score_[i] * (params_.scale * kLog2E) + offset[i];
    return max(max(x[0], x[1]), max(x[2], x[3]));
  }

  DSV4_MEMBER float weigh(int tile) {
    const auto &parts = lds_.scores[half_ * TILES + own_];
    score_ += (parts[0][lane()] + parts[1][lane()]) + parts[2][lane()];
    const float4 offset = bias(tile) - reference_;
    if (unlikely(any(best(offset) > kSlack))) lds_.raise[tile & 1] = 1;
    return store_weights(offset);
  }

  // Rare, and out of step with the rest: new references, what was summed fades, new weights for this tile.
  DSV4_MEMBER float raise_reference(int tile) {
    if (sums_) {
      float highest = best(bias(tile));
      highest = max(highest, from_lane_xor(highest, 16));
      highest = max(highest, from_lane_xor(highest, 32));
      if (lane() < 16) lds_.best[half_][own_ * 16 + lane()] = highest;
    }
    barrier();
    for (int step = 0; step < TILES; ++step) {
      const int row = row_tile(step) * 16 + column_;
      const float before = lds_.reference[row];
      const float after = max(before, max(lds_.best[0][row], lds_.best[1][row]));
      const float fade = exp2(before - after);
      for (int c = 0; c < 4; ++c) result_[step][c] *= fade;
      if (step > 0) continue;
      reference_ = after;
      total_ *= fade;
    }
    float added = 0;
    if (sums_) added = store_weights(bias(tile) - reference_);
    barrier();
    if (sums_ && half_ == 0 && lane() < 16) lds_.reference[own_ * 16 + lane()] = reference_;
    return added;
  }

  DSV4_MEMBER void multiply_values(int tile) {
    int4 values[4];
    for (int half = 0; half < 2; ++half)
      if (RopeValues)
        transpose_rope_values(half, values);
      else
        dequantize_values(half, *reinterpret_cast<const float4 *>(
                                    &lds_.scale[tile & 1][wave_][half * 16 + 4 * quarter_]), values);
    load_values(tile + 1);
    for (int step = 0; step < TILES; ++step) {
      const int2 first = lds_.weights[row_tile(step)][lane()], second = lds_.weights[TILES + row_tile(step)][lane()];
      const int4 weights = {first.x, first.y, second.x, second.y};
      for (int c = 0; c < 4; ++c) result_[step][c] = mfma_bf16(values[c], weights, result_[step][c]);
    }
  }

  // [key][channel] to pairs of keys by channel.
  DSV4_MEMBER void transpose(int half, const int (&pair)[4][2], int4 (&values)[4]) const {
    for (int c = 0; c < 4; ++c)
      for (int j = 0; j < 2; ++j) {
        const int low = pair[2 * j][c / 2], high = pair[2 * j + 1][c / 2];
        values[c][2 * half + j] = c % 2 ? upper_halves(low, high) : lower_halves(low, high);
      }
  }

  DSV4_MEMBER void transpose_rope_values(int half, int4 (&values)[4]) const {
    int pair[4][2];
    for (int j = 0; j < 4; ++j)
      for (int c = 0; c < 2; ++c) pair[j][c] = value_[half][j][RopeValues ? c : 0];
    transpose(half, pair, values);
  }

  DSV4_MEMBER void dequantize_values(int half, float4 scale, int4 (&values)[4]) const {
#if defined(__gfx950__)
    int pair[4][2];
    for (int j = 0; j < 4; ++j) {
      pair[j][0] = dequantize2<false>(value_[half][j][0], scale[j]);
      pair[j][1] = dequantize2<true>(value_[half][j][0], scale[j]);
    }
    transpose(half, pair, values);
#else
    float2 pair[4][2];
    for (int j = 0; j < 4; ++j) {
      const int bytes = Scrub ? scrub(value_[half][j][0]) : value_[half][j][0];
      pair[j][0] = __builtin_amdgcn_cvt_pk_f32_fp8(bytes, false) * scale[j];
      pair[j][1] = __builtin_amdgcn_cvt_pk_f32_fp8(bytes, true) * scale[j];
    }
    for (int c = 0; c < 4; ++c)
      for (int j = 0; j < 2; ++j)  // exact truncation and transposition in one
        values[c][2 * half + j] = truncate2(pair[2 * j][c / 2][c % 2], pair[2 * j + 1][c / 2][c % 2]);
#endif
  }

  // Totals of the halves of a tile meet in LDS, the sink's weight among them; then every wave scales its channels.
  DSV4_MEMBER void write_result() {
    const bool direct = params_.parts == nullptr;
    const bool turns = direct && params_.frequencies;
    if (sums_) {
      total_ += from_lane_xor(total_, 16);
      total_ += from_lane_xor(total_, 32);
      const int row = own_ * 16 + column_;
      if (direct && half_ == 0) total_ += sink_weight(lds_.sink[row], reference_);
      if (lane() < 16) lds_.total[half_][row] = total_;
    }
    if (turns && thread() < kTurnTokens * Row::kRopeCount / 2) store_turn();
    barrier();
    const std::int64_t cell = (std::int64_t{split_} * params_.tokens + token_) * params_.heads;
    if (!direct && sums_ && half_ == 0 && lane() < 16) store_part(cell);
    if (!direct && range_.begin >= range_.end) return;
    for (int step = 0; step < TILES; ++step) {
      const int row = row_tile(step) * 16 + column_;
      const Place place = place_of(row);
      const float inverse = inverse_total(lds_.total[0][row] + lds_.total[1][row]);
      for (int c = 0; c < 4; ++c) result_[step][c] *= inverse;
      if (RopeValues && turns) turn_row_back(result_[step], place.token);
      if (place.live) store_row(result_[step], cell, place.cell);
    }
  }

  DSV4_MEMBER void store_part(std::int64_t cell) const {
    const int row = own_ * 16 + lane();
    const Place place = place_of(row);
    if (place.live) params_.parts[cell + place.cell] = float2{reference_, lds_.total[0][row] + lds_.total[1][row]};
  }

  // A lane ends with 16 neighbouring channels of a row: element i of result c is channel 4 i + c. The turns of its
  // eight pairs lie where a wave reads neighbours: [pair % 8][token][pair / 8].
  static constexpr int kTurnTokens = Sharing ? kMostTokens : 1;

  DSV4_MEMBER Turn *turns() const {
    static_assert(sizeof(lds_.scores) >= kTurnTokens * Row::kRopeCount / 2 * sizeof(Turn));
    return reinterpret_cast<Turn *>(lds_.scores);
  }

  DSV4_MEMBER void store_turn() const {
    const int quarter = thread() % 4, token = thread() / 4 % kTurnTokens, pair = thread() / (4 * kTurnTokens);
    const auto position = params_.positions[token_ + (Sharing ? min(token, params_.group_tokens - 1) : 0)];
    turns()[thread()] = turn_at(static_cast<int>(position), params_.frequencies[8 * quarter + pair]);
  }

  DSV4_MEMBER void turn_row_back(float4 (&channels)[4], int token) const {
    for (int i = 0; i < 4; ++i)
      for (int c = 0; c < 4; c += 2) {
        const Turn turn = turns()[((2 * i + c / 2) * kTurnTokens + token) * 4 + quarter_];
        float even = channels[c][i], odd = channels[c + 1][i];
        turn_back(turn, even, odd);
        channels[c][i] = even;
        channels[c + 1][i] = odd;
      }
  }

  DSV4_MEMBER void store_row(const float4 (&channels)[4], std::int64_t first_cell, int cell) const {
    int4 packed[2];
    for (int i = 0; i < 4; ++i)
      for (int c = 0; c < 4; c += 2) packed[i / 2][i % 2 * 2 + c / 2] = round2(channels[c][i], channels[c + 1][i]);
    const auto first = reinterpret_cast<std::uint64_t>(params_.out + first_cell * kChannels);
    const int channel = cell * kChannels + kGroup * wave_ + 16 * quarter_;
    const auto out = reinterpret_cast<Global<int4>>(first + static_cast<unsigned>(channel * sizeof(bf16)));
    out[0] = packed[0];
    out[1] = packed[1];
  }
};

}  // namespace dsv4::sparse_attention
