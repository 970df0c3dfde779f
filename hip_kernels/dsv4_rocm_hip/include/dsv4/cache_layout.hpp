// The bytes of every cache. Generated from dsv4_rocm/cache/layout.py by `make docs`; do not edit.
#pragma once

#include <cstdint>

namespace dsv4::cache {

inline constexpr int kBlockTokens = 256;
inline constexpr int kPageAlignment = 576;
inline constexpr int kFp8Group = 64;

namespace fp8 {

struct Swa {  // a row for a token
  static constexpr int kChannels = 512;
  static constexpr int kTokensPerPage = 64;
  static constexpr int kTokensPerRow = 1;
  static constexpr int kRowsPerPage = 64;
  static constexpr int kWindow = 128;
  static constexpr int kDataBytes = 576;
  static constexpr int kScaleBytes = 8;
  static constexpr int kScalesStart = 36864;
  static constexpr int kPageBytes = 37376;
  static constexpr int kPaddedPageBytes = 37440;
  static constexpr int kNopeOffset = 0;  // in a row's data: e4m3
  static constexpr int kNopeCount = 448;
  static constexpr int kRopeOffset = 448;  // in a row's data: bf16
  static constexpr int kRopeCount = 64;
  static constexpr int kExponentsOffset = 0;  // in a row's scales: e8m0
  static constexpr int kExponentsCount = 7;
  static constexpr int kPadOffset = 7;  // in a row's scales: zero
  static constexpr int kPadCount = 1;
  // Bytes from the start of a page to the data and to the scales of a row.
  static constexpr std::int64_t data_offset(int row) { return std::int64_t{row} * kDataBytes; }
  static constexpr std::int64_t scale_offset(int row) {
    return kScalesStart + std::int64_t{row} * kScaleBytes;
  }
};
static_assert(Swa::scale_offset(Swa::kRowsPerPage) == Swa::kPageBytes);
static_assert(Swa::kPageBytes <= Swa::kPaddedPageBytes);

struct C4aEntries {  // a row for 4 tokens
  static constexpr int kChannels = 512;
  static constexpr int kTokensPerPage = 256;
  static constexpr int kTokensPerRow = 4;
  static constexpr int kRowsPerPage = 64;
  static constexpr int kWindow = 0;  // everything is kept
  static constexpr int kDataBytes = 576;
  static constexpr int kScaleBytes = 8;
  static constexpr int kScalesStart = 36864;
  static constexpr int kPageBytes = 37376;
  static constexpr int kPaddedPageBytes = 37440;
  static constexpr int kNopeOffset = 0;  // in a row's data: e4m3
  static constexpr int kNopeCount = 448;
  static constexpr int kRopeOffset = 448;  // in a row's data: bf16
  static constexpr int kRopeCount = 64;
  static constexpr int kExponentsOffset = 0;  // in a row's scales: e8m0
  static constexpr int kExponentsCount = 7;
  static constexpr int kPadOffset = 7;  // in a row's scales: zero
  static constexpr int kPadCount = 1;
  // Bytes from the start of a page to the data and to the scales of a row.
  static constexpr std::int64_t data_offset(int row) { return std::int64_t{row} * kDataBytes; }
  static constexpr std::int64_t scale_offset(int row) {
    return kScalesStart + std::int64_t{row} * kScaleBytes;
  }
};
static_assert(C4aEntries::scale_offset(C4aEntries::kRowsPerPage) == C4aEntries::kPageBytes);
static_assert(C4aEntries::kPageBytes <= C4aEntries::kPaddedPageBytes);

struct C128aEntries {  // a row for 128 tokens
  static constexpr int kChannels = 512;
  static constexpr int kTokensPerPage = 256;
  static constexpr int kTokensPerRow = 128;
  static constexpr int kRowsPerPage = 2;
  static constexpr int kWindow = 0;  // everything is kept
  static constexpr int kDataBytes = 576;
  static constexpr int kScaleBytes = 8;
  static constexpr int kScalesStart = 1152;
  static constexpr int kPageBytes = 1168;
  static constexpr int kPaddedPageBytes = 1728;
  static constexpr int kNopeOffset = 0;  // in a row's data: e4m3
  static constexpr int kNopeCount = 448;
  static constexpr int kRopeOffset = 448;  // in a row's data: bf16
  static constexpr int kRopeCount = 64;
  static constexpr int kExponentsOffset = 0;  // in a row's scales: e8m0
  static constexpr int kExponentsCount = 7;
  static constexpr int kPadOffset = 7;  // in a row's scales: zero
  static constexpr int kPadCount = 1;
  // Bytes from the start of a page to the data and to the scales of a row.
  static constexpr std::int64_t data_offset(int row) { return std::int64_t{row} * kDataBytes; }
  static constexpr std::int64_t scale_offset(int row) {
    return kScalesStart + std::int64_t{row} * kScaleBytes;
  }
};
static_assert(C128aEntries::scale_offset(C128aEntries::kRowsPerPage) == C128aEntries::kPageBytes);
static_assert(C128aEntries::kPageBytes <= C128aEntries::kPaddedPageBytes);

struct Index {  // a row for 4 tokens
  static constexpr int kChannels = 128;
  static constexpr int kTokensPerPage = 256;
  static constexpr int kTokensPerRow = 4;
  static constexpr int kRowsPerPage = 64;
  static constexpr int kWindow = 0;  // everything is kept
  static constexpr int kDataBytes = 128;
  static constexpr int kScaleBytes = 4;
  static constexpr int kScalesStart = 8192;
  static constexpr int kPageBytes = 8448;
  static constexpr int kPaddedPageBytes = 8640;
  static constexpr int kKeyOffset = 0;  // in a row's data: e4m3
  static constexpr int kKeyCount = 128;
  static constexpr int kScaleOffset = 0;  // in a row's scales: fp32
  static constexpr int kScaleCount = 1;
  // Bytes from the start of a page to the data and to the scales of a row.
  static constexpr std::int64_t data_offset(int row) { return std::int64_t{row} * kDataBytes; }
  static constexpr std::int64_t scale_offset(int row) {
    return kScalesStart + std::int64_t{row} * kScaleBytes;
  }
};
static_assert(Index::scale_offset(Index::kRowsPerPage) == Index::kPageBytes);
static_assert(Index::kPageBytes <= Index::kPaddedPageBytes);

struct C4aState {  // a row for a token
  static constexpr int kChannels = 2048;
  static constexpr int kTokensPerPage = 4;
  static constexpr int kTokensPerRow = 1;
  static constexpr int kRowsPerPage = 4;
  static constexpr int kWindow = 8;
  static constexpr int kDataBytes = 8192;
  static constexpr int kScaleBytes = 0;
  static constexpr int kScalesStart = 32768;
  static constexpr int kPageBytes = 32768;
  static constexpr int kPaddedPageBytes = 32832;
  static constexpr int kProjectionOffset = 0;  // in a row's data: fp32
  static constexpr int kProjectionCount = 1024;
  static constexpr int kGateOffset = 4096;  // in a row's data: fp32
  static constexpr int kGateCount = 1024;
  // Bytes from the start of a page to the data and to the scales of a row.
  static constexpr std::int64_t data_offset(int row) { return std::int64_t{row} * kDataBytes; }
  static constexpr std::int64_t scale_offset(int row) {
    return kScalesStart + std::int64_t{row} * kScaleBytes;
  }
};
static_assert(C4aState::scale_offset(C4aState::kRowsPerPage) == C4aState::kPageBytes);
static_assert(C4aState::kPageBytes <= C4aState::kPaddedPageBytes);

struct C128aState {  // a row for a token
  static constexpr int kChannels = 1024;
  static constexpr int kTokensPerPage = 8;
  static constexpr int kTokensPerRow = 1;
  static constexpr int kRowsPerPage = 8;
  static constexpr int kWindow = 128;
  static constexpr int kDataBytes = 4096;
  static constexpr int kScaleBytes = 0;
  static constexpr int kScalesStart = 32768;
  static constexpr int kPageBytes = 32768;
  static constexpr int kPaddedPageBytes = 32832;
  static constexpr int kProjectionOffset = 0;  // in a row's data: fp32
  static constexpr int kProjectionCount = 512;
  static constexpr int kGateOffset = 2048;  // in a row's data: fp32
  static constexpr int kGateCount = 512;
  // Bytes from the start of a page to the data and to the scales of a row.
  static constexpr std::int64_t data_offset(int row) { return std::int64_t{row} * kDataBytes; }
  static constexpr std::int64_t scale_offset(int row) {
    return kScalesStart + std::int64_t{row} * kScaleBytes;
  }
};
static_assert(C128aState::scale_offset(C128aState::kRowsPerPage) == C128aState::kPageBytes);
static_assert(C128aState::kPageBytes <= C128aState::kPaddedPageBytes);

struct IndexState {  // a row for a token
  static constexpr int kChannels = 512;
  static constexpr int kTokensPerPage = 4;
  static constexpr int kTokensPerRow = 1;
  static constexpr int kRowsPerPage = 4;
  static constexpr int kWindow = 8;
  static constexpr int kDataBytes = 2048;
  static constexpr int kScaleBytes = 0;
  static constexpr int kScalesStart = 8192;
  static constexpr int kPageBytes = 8192;
  static constexpr int kPaddedPageBytes = 8640;
  static constexpr int kProjectionOffset = 0;  // in a row's data: fp32
  static constexpr int kProjectionCount = 256;
  static constexpr int kGateOffset = 1024;  // in a row's data: fp32
  static constexpr int kGateCount = 256;
  // Bytes from the start of a page to the data and to the scales of a row.
  static constexpr std::int64_t data_offset(int row) { return std::int64_t{row} * kDataBytes; }
  static constexpr std::int64_t scale_offset(int row) {
    return kScalesStart + std::int64_t{row} * kScaleBytes;
  }
};
static_assert(IndexState::scale_offset(IndexState::kRowsPerPage) == IndexState::kPageBytes);
static_assert(IndexState::kPageBytes <= IndexState::kPaddedPageBytes);

}  // namespace fp8

namespace bf16 {

struct Swa {  // a row for a token
  static constexpr int kChannels = 512;
  static constexpr int kTokensPerPage = 64;
  static constexpr int kTokensPerRow = 1;
  static constexpr int kRowsPerPage = 64;
  static constexpr int kWindow = 128;
  static constexpr int kDataBytes = 1024;
  static constexpr int kScaleBytes = 0;
  static constexpr int kScalesStart = 65536;
  static constexpr int kPageBytes = 65536;
  static constexpr int kPaddedPageBytes = 65536;
  static constexpr int kNopeOffset = 0;  // in a row's data: bf16
  static constexpr int kNopeCount = 448;
  static constexpr int kRopeOffset = 896;  // in a row's data: bf16
  static constexpr int kRopeCount = 64;
  // Bytes from the start of a page to the data and to the scales of a row.
  static constexpr std::int64_t data_offset(int row) { return std::int64_t{row} * kDataBytes; }
  static constexpr std::int64_t scale_offset(int row) {
    return kScalesStart + std::int64_t{row} * kScaleBytes;
  }
};
static_assert(Swa::scale_offset(Swa::kRowsPerPage) == Swa::kPageBytes);
static_assert(Swa::kPageBytes <= Swa::kPaddedPageBytes);

struct C4aEntries {  // a row for 4 tokens
  static constexpr int kChannels = 512;
  static constexpr int kTokensPerPage = 256;
  static constexpr int kTokensPerRow = 4;
  static constexpr int kRowsPerPage = 64;
  static constexpr int kWindow = 0;  // everything is kept
  static constexpr int kDataBytes = 1024;
  static constexpr int kScaleBytes = 0;
  static constexpr int kScalesStart = 65536;
  static constexpr int kPageBytes = 65536;
  static constexpr int kPaddedPageBytes = 65536;
  static constexpr int kNopeOffset = 0;  // in a row's data: bf16
  static constexpr int kNopeCount = 448;
  static constexpr int kRopeOffset = 896;  // in a row's data: bf16
  static constexpr int kRopeCount = 64;
  // Bytes from the start of a page to the data and to the scales of a row.
  static constexpr std::int64_t data_offset(int row) { return std::int64_t{row} * kDataBytes; }
  static constexpr std::int64_t scale_offset(int row) {
    return kScalesStart + std::int64_t{row} * kScaleBytes;
  }
};
static_assert(C4aEntries::scale_offset(C4aEntries::kRowsPerPage) == C4aEntries::kPageBytes);
static_assert(C4aEntries::kPageBytes <= C4aEntries::kPaddedPageBytes);

struct C128aEntries {  // a row for 128 tokens
  static constexpr int kChannels = 512;
  static constexpr int kTokensPerPage = 256;
  static constexpr int kTokensPerRow = 128;
  static constexpr int kRowsPerPage = 2;
  static constexpr int kWindow = 0;  // everything is kept
  static constexpr int kDataBytes = 1024;
  static constexpr int kScaleBytes = 0;
  static constexpr int kScalesStart = 2048;
  static constexpr int kPageBytes = 2048;
  static constexpr int kPaddedPageBytes = 2048;
  static constexpr int kNopeOffset = 0;  // in a row's data: bf16
  static constexpr int kNopeCount = 448;
  static constexpr int kRopeOffset = 896;  // in a row's data: bf16
  static constexpr int kRopeCount = 64;
  // Bytes from the start of a page to the data and to the scales of a row.
  static constexpr std::int64_t data_offset(int row) { return std::int64_t{row} * kDataBytes; }
  static constexpr std::int64_t scale_offset(int row) {
    return kScalesStart + std::int64_t{row} * kScaleBytes;
  }
};
static_assert(C128aEntries::scale_offset(C128aEntries::kRowsPerPage) == C128aEntries::kPageBytes);
static_assert(C128aEntries::kPageBytes <= C128aEntries::kPaddedPageBytes);

struct Index {  // a row for 4 tokens
  static constexpr int kChannels = 128;
  static constexpr int kTokensPerPage = 256;
  static constexpr int kTokensPerRow = 4;
  static constexpr int kRowsPerPage = 64;
  static constexpr int kWindow = 0;  // everything is kept
  static constexpr int kDataBytes = 256;
  static constexpr int kScaleBytes = 0;
  static constexpr int kScalesStart = 16384;
  static constexpr int kPageBytes = 16384;
  static constexpr int kPaddedPageBytes = 16384;
  static constexpr int kKeyOffset = 0;  // in a row's data: bf16
  static constexpr int kKeyCount = 128;
  // Bytes from the start of a page to the data and to the scales of a row.
  static constexpr std::int64_t data_offset(int row) { return std::int64_t{row} * kDataBytes; }
  static constexpr std::int64_t scale_offset(int row) {
    return kScalesStart + std::int64_t{row} * kScaleBytes;
  }
};
static_assert(Index::scale_offset(Index::kRowsPerPage) == Index::kPageBytes);
static_assert(Index::kPageBytes <= Index::kPaddedPageBytes);

struct C4aState {  // a row for a token
  static constexpr int kChannels = 2048;
  static constexpr int kTokensPerPage = 4;
  static constexpr int kTokensPerRow = 1;
  static constexpr int kRowsPerPage = 4;
  static constexpr int kWindow = 8;
  static constexpr int kDataBytes = 8192;
  static constexpr int kScaleBytes = 0;
  static constexpr int kScalesStart = 32768;
  static constexpr int kPageBytes = 32768;
  static constexpr int kPaddedPageBytes = 32768;
  static constexpr int kProjectionOffset = 0;  // in a row's data: fp32
  static constexpr int kProjectionCount = 1024;
  static constexpr int kGateOffset = 4096;  // in a row's data: fp32
  static constexpr int kGateCount = 1024;
  // Bytes from the start of a page to the data and to the scales of a row.
  static constexpr std::int64_t data_offset(int row) { return std::int64_t{row} * kDataBytes; }
  static constexpr std::int64_t scale_offset(int row) {
    return kScalesStart + std::int64_t{row} * kScaleBytes;
  }
};
static_assert(C4aState::scale_offset(C4aState::kRowsPerPage) == C4aState::kPageBytes);
static_assert(C4aState::kPageBytes <= C4aState::kPaddedPageBytes);

struct C128aState {  // a row for a token
  static constexpr int kChannels = 1024;
  static constexpr int kTokensPerPage = 8;
  static constexpr int kTokensPerRow = 1;
  static constexpr int kRowsPerPage = 8;
  static constexpr int kWindow = 128;
  static constexpr int kDataBytes = 4096;
  static constexpr int kScaleBytes = 0;
  static constexpr int kScalesStart = 32768;
  static constexpr int kPageBytes = 32768;
  static constexpr int kPaddedPageBytes = 32768;
  static constexpr int kProjectionOffset = 0;  // in a row's data: fp32
  static constexpr int kProjectionCount = 512;
  static constexpr int kGateOffset = 2048;  // in a row's data: fp32
  static constexpr int kGateCount = 512;
  // Bytes from the start of a page to the data and to the scales of a row.
  static constexpr std::int64_t data_offset(int row) { return std::int64_t{row} * kDataBytes; }
  static constexpr std::int64_t scale_offset(int row) {
    return kScalesStart + std::int64_t{row} * kScaleBytes;
  }
};
static_assert(C128aState::scale_offset(C128aState::kRowsPerPage) == C128aState::kPageBytes);
static_assert(C128aState::kPageBytes <= C128aState::kPaddedPageBytes);

struct IndexState {  // a row for a token
  static constexpr int kChannels = 512;
  static constexpr int kTokensPerPage = 4;
  static constexpr int kTokensPerRow = 1;
  static constexpr int kRowsPerPage = 4;
  static constexpr int kWindow = 8;
  static constexpr int kDataBytes = 2048;
  static constexpr int kScaleBytes = 0;
  static constexpr int kScalesStart = 8192;
  static constexpr int kPageBytes = 8192;
  static constexpr int kPaddedPageBytes = 8192;
  static constexpr int kProjectionOffset = 0;  // in a row's data: fp32
  static constexpr int kProjectionCount = 256;
  static constexpr int kGateOffset = 1024;  // in a row's data: fp32
  static constexpr int kGateCount = 256;
  // Bytes from the start of a page to the data and to the scales of a row.
  static constexpr std::int64_t data_offset(int row) { return std::int64_t{row} * kDataBytes; }
  static constexpr std::int64_t scale_offset(int row) {
    return kScalesStart + std::int64_t{row} * kScaleBytes;
  }
};
static_assert(IndexState::scale_offset(IndexState::kRowsPerPage) == IndexState::kPageBytes);
static_assert(IndexState::kPageBytes <= IndexState::kPaddedPageBytes);

}  // namespace bf16

namespace fp32 {

struct Swa {  // a row for a token
  static constexpr int kChannels = 512;
  static constexpr int kTokensPerPage = 64;
  static constexpr int kTokensPerRow = 1;
  static constexpr int kRowsPerPage = 64;
  static constexpr int kWindow = 128;
  static constexpr int kDataBytes = 2048;
  static constexpr int kScaleBytes = 0;
  static constexpr int kScalesStart = 131072;
  static constexpr int kPageBytes = 131072;
  static constexpr int kPaddedPageBytes = 131072;
  static constexpr int kNopeOffset = 0;  // in a row's data: fp32
  static constexpr int kNopeCount = 448;
  static constexpr int kRopeOffset = 1792;  // in a row's data: fp32
  static constexpr int kRopeCount = 64;
  // Bytes from the start of a page to the data and to the scales of a row.
  static constexpr std::int64_t data_offset(int row) { return std::int64_t{row} * kDataBytes; }
  static constexpr std::int64_t scale_offset(int row) {
    return kScalesStart + std::int64_t{row} * kScaleBytes;
  }
};
static_assert(Swa::scale_offset(Swa::kRowsPerPage) == Swa::kPageBytes);
static_assert(Swa::kPageBytes <= Swa::kPaddedPageBytes);

struct C4aEntries {  // a row for 4 tokens
  static constexpr int kChannels = 512;
  static constexpr int kTokensPerPage = 256;
  static constexpr int kTokensPerRow = 4;
  static constexpr int kRowsPerPage = 64;
  static constexpr int kWindow = 0;  // everything is kept
  static constexpr int kDataBytes = 2048;
  static constexpr int kScaleBytes = 0;
  static constexpr int kScalesStart = 131072;
  static constexpr int kPageBytes = 131072;
  static constexpr int kPaddedPageBytes = 131072;
  static constexpr int kNopeOffset = 0;  // in a row's data: fp32
  static constexpr int kNopeCount = 448;
  static constexpr int kRopeOffset = 1792;  // in a row's data: fp32
  static constexpr int kRopeCount = 64;
  // Bytes from the start of a page to the data and to the scales of a row.
  static constexpr std::int64_t data_offset(int row) { return std::int64_t{row} * kDataBytes; }
  static constexpr std::int64_t scale_offset(int row) {
    return kScalesStart + std::int64_t{row} * kScaleBytes;
  }
};
static_assert(C4aEntries::scale_offset(C4aEntries::kRowsPerPage) == C4aEntries::kPageBytes);
static_assert(C4aEntries::kPageBytes <= C4aEntries::kPaddedPageBytes);

struct C128aEntries {  // a row for 128 tokens
  static constexpr int kChannels = 512;
  static constexpr int kTokensPerPage = 256;
  static constexpr int kTokensPerRow = 128;
  static constexpr int kRowsPerPage = 2;
  static constexpr int kWindow = 0;  // everything is kept
  static constexpr int kDataBytes = 2048;
  static constexpr int kScaleBytes = 0;
  static constexpr int kScalesStart = 4096;
  static constexpr int kPageBytes = 4096;
  static constexpr int kPaddedPageBytes = 4096;
  static constexpr int kNopeOffset = 0;  // in a row's data: fp32
  static constexpr int kNopeCount = 448;
  static constexpr int kRopeOffset = 1792;  // in a row's data: fp32
  static constexpr int kRopeCount = 64;
  // Bytes from the start of a page to the data and to the scales of a row.
  static constexpr std::int64_t data_offset(int row) { return std::int64_t{row} * kDataBytes; }
  static constexpr std::int64_t scale_offset(int row) {
    return kScalesStart + std::int64_t{row} * kScaleBytes;
  }
};
static_assert(C128aEntries::scale_offset(C128aEntries::kRowsPerPage) == C128aEntries::kPageBytes);
static_assert(C128aEntries::kPageBytes <= C128aEntries::kPaddedPageBytes);

struct Index {  // a row for 4 tokens
  static constexpr int kChannels = 128;
  static constexpr int kTokensPerPage = 256;
  static constexpr int kTokensPerRow = 4;
  static constexpr int kRowsPerPage = 64;
  static constexpr int kWindow = 0;  // everything is kept
  static constexpr int kDataBytes = 512;
  static constexpr int kScaleBytes = 0;
  static constexpr int kScalesStart = 32768;
  static constexpr int kPageBytes = 32768;
  static constexpr int kPaddedPageBytes = 32768;
  static constexpr int kKeyOffset = 0;  // in a row's data: fp32
  static constexpr int kKeyCount = 128;
  // Bytes from the start of a page to the data and to the scales of a row.
  static constexpr std::int64_t data_offset(int row) { return std::int64_t{row} * kDataBytes; }
  static constexpr std::int64_t scale_offset(int row) {
    return kScalesStart + std::int64_t{row} * kScaleBytes;
  }
};
static_assert(Index::scale_offset(Index::kRowsPerPage) == Index::kPageBytes);
static_assert(Index::kPageBytes <= Index::kPaddedPageBytes);

struct C4aState {  // a row for a token
  static constexpr int kChannels = 2048;
  static constexpr int kTokensPerPage = 4;
  static constexpr int kTokensPerRow = 1;
  static constexpr int kRowsPerPage = 4;
  static constexpr int kWindow = 8;
  static constexpr int kDataBytes = 8192;
  static constexpr int kScaleBytes = 0;
  static constexpr int kScalesStart = 32768;
  static constexpr int kPageBytes = 32768;
  static constexpr int kPaddedPageBytes = 32768;
  static constexpr int kProjectionOffset = 0;  // in a row's data: fp32
  static constexpr int kProjectionCount = 1024;
  static constexpr int kGateOffset = 4096;  // in a row's data: fp32
  static constexpr int kGateCount = 1024;
  // Bytes from the start of a page to the data and to the scales of a row.
  static constexpr std::int64_t data_offset(int row) { return std::int64_t{row} * kDataBytes; }
  static constexpr std::int64_t scale_offset(int row) {
    return kScalesStart + std::int64_t{row} * kScaleBytes;
  }
};
static_assert(C4aState::scale_offset(C4aState::kRowsPerPage) == C4aState::kPageBytes);
static_assert(C4aState::kPageBytes <= C4aState::kPaddedPageBytes);

struct C128aState {  // a row for a token
  static constexpr int kChannels = 1024;
  static constexpr int kTokensPerPage = 8;
  static constexpr int kTokensPerRow = 1;
  static constexpr int kRowsPerPage = 8;
  static constexpr int kWindow = 128;
  static constexpr int kDataBytes = 4096;
  static constexpr int kScaleBytes = 0;
  static constexpr int kScalesStart = 32768;
  static constexpr int kPageBytes = 32768;
  static constexpr int kPaddedPageBytes = 32768;
  static constexpr int kProjectionOffset = 0;  // in a row's data: fp32
  static constexpr int kProjectionCount = 512;
  static constexpr int kGateOffset = 2048;  // in a row's data: fp32
  static constexpr int kGateCount = 512;
  // Bytes from the start of a page to the data and to the scales of a row.
  static constexpr std::int64_t data_offset(int row) { return std::int64_t{row} * kDataBytes; }
  static constexpr std::int64_t scale_offset(int row) {
    return kScalesStart + std::int64_t{row} * kScaleBytes;
  }
};
static_assert(C128aState::scale_offset(C128aState::kRowsPerPage) == C128aState::kPageBytes);
static_assert(C128aState::kPageBytes <= C128aState::kPaddedPageBytes);

struct IndexState {  // a row for a token
  static constexpr int kChannels = 512;
  static constexpr int kTokensPerPage = 4;
  static constexpr int kTokensPerRow = 1;
  static constexpr int kRowsPerPage = 4;
  static constexpr int kWindow = 8;
  static constexpr int kDataBytes = 2048;
  static constexpr int kScaleBytes = 0;
  static constexpr int kScalesStart = 8192;
  static constexpr int kPageBytes = 8192;
  static constexpr int kPaddedPageBytes = 8192;
  static constexpr int kProjectionOffset = 0;  // in a row's data: fp32
  static constexpr int kProjectionCount = 256;
  static constexpr int kGateOffset = 1024;  // in a row's data: fp32
  static constexpr int kGateCount = 256;
  // Bytes from the start of a page to the data and to the scales of a row.
  static constexpr std::int64_t data_offset(int row) { return std::int64_t{row} * kDataBytes; }
  static constexpr std::int64_t scale_offset(int row) {
    return kScalesStart + std::int64_t{row} * kScaleBytes;
  }
};
static_assert(IndexState::scale_offset(IndexState::kRowsPerPage) == IndexState::kPageBytes);
static_assert(IndexState::kPageBytes <= IndexState::kPaddedPageBytes);

}  // namespace fp32

namespace mxfp4 {

struct Index {  // a row for 4 tokens
  static constexpr int kChannels = 128;
  static constexpr int kTokensPerPage = 256;
  static constexpr int kTokensPerRow = 4;
  static constexpr int kRowsPerPage = 64;
  static constexpr int kWindow = 0;  // everything is kept
  static constexpr int kDataBytes = 64;
  static constexpr int kScaleBytes = 4;
  static constexpr int kScalesStart = 4096;
  static constexpr int kPageBytes = 4352;
  static constexpr int kPaddedPageBytes = 4608;
  static constexpr int kKeyOffset = 0;  // in a row's data: e2m1 pairs
  static constexpr int kKeyCount = 64;
  static constexpr int kExponentsOffset = 0;  // in a row's scales: e8m0
  static constexpr int kExponentsCount = 4;
  // Bytes from the start of a page to the data and to the scales of a row.
  static constexpr std::int64_t data_offset(int row) { return std::int64_t{row} * kDataBytes; }
  static constexpr std::int64_t scale_offset(int row) {
    return kScalesStart + std::int64_t{row} * kScaleBytes;
  }
};
static_assert(Index::scale_offset(Index::kRowsPerPage) == Index::kPageBytes);
static_assert(Index::kPageBytes <= Index::kPaddedPageBytes);

}  // namespace mxfp4

}  // namespace dsv4::cache
