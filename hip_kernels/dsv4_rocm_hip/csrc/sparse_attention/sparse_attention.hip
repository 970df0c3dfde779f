// sparse_attention: attention of a few query rows to the rows of two paged fp8 caches, window and entries, and the
// kernel that combines splits. Grid: (groups of tokens, blocks of heads, splits); 8 waves a workgroup.
#include "combine.hpp"
#include "wave.hpp"

namespace dsv4::sparse_attention {

inline constexpr int kL2s = 8;  // XCDs, which take workgroups in turn

// The group of tokens of a workgroup: groups of one request, which read much the same keys, meet in one L2.
DSV4_DEVICE int group_of(const Params &params, int workgroup) {
  if (params.request_groups == 1) return workgroup;
  const int round = kL2s * params.request_groups, first = workgroup / round * round, inside = workgroup - first;
  if ((first + round) * params.group_tokens > params.tokens) return workgroup;
  return first + inside % kL2s * params.request_groups + inside / kL2s;
}

template <int TILES, bool Sharing, bool Scrub>
DSV4_DEVICE void attend(const Params &params, Lds<TILES> &lds) {
  const int group = group_of(params, static_cast<int>(__builtin_amdgcn_workgroup_id_x()));
  const int token = group * (Sharing ? params.group_tokens : 1);
  const int head = static_cast<int>(__builtin_amdgcn_workgroup_id_y()) * 16 * TILES;
  const int split = static_cast<int>(__builtin_amdgcn_workgroup_id_z());
  const int number = wave();
  if (number == kWaves - 1)
    Wave<TILES, true, true, Sharing, Scrub>(params, lds, number, token, head, split).run();
  else if (number == kSlices - 1)
    Wave<TILES, true, false, Sharing, Scrub>(params, lds, number, token, head, split).run();
  else
    Wave<TILES, false, false, Sharing, Scrub>(params, lds, number, token, head, split).run();
}

}  // namespace dsv4::sparse_attention

#define DSV4_SPARSE_ATTENTION(name, tiles, sharing, scrub)                       \
  DSV4_KERNEL(512, 2) name(dsv4::sparse_attention::Params params) {              \
    DSV4_SHARED dsv4::sparse_attention::Lds<tiles> lds;                          \
    dsv4::sparse_attention::attend<tiles, sharing, scrub>(params, lds);          \
  }

DSV4_SPARSE_ATTENTION(sparse_attention_16, 1, false, false)
DSV4_SPARSE_ATTENTION(sparse_attention_32, 2, false, false)
DSV4_SPARSE_ATTENTION(sparse_attention_64, 4, false, false)
DSV4_SPARSE_ATTENTION(sparse_attention_16_sharing, 1, true, false)
DSV4_SPARSE_ATTENTION(sparse_attention_32_sharing, 2, true, false)
DSV4_SPARSE_ATTENTION(sparse_attention_64_sharing, 4, true, false)
#if defined(__gfx942__)  // -0 of a foreign writer is a NaN here
DSV4_SPARSE_ATTENTION(sparse_attention_16_foreign, 1, false, true)
DSV4_SPARSE_ATTENTION(sparse_attention_32_foreign, 2, false, true)
DSV4_SPARSE_ATTENTION(sparse_attention_64_foreign, 4, false, true)
DSV4_SPARSE_ATTENTION(sparse_attention_16_sharing_foreign, 1, true, true)
DSV4_SPARSE_ATTENTION(sparse_attention_32_sharing_foreign, 2, true, true)
DSV4_SPARSE_ATTENTION(sparse_attention_64_sharing_foreign, 4, true, true)
#endif

DSV4_KERNEL(256, 4) sparse_attention_combine(dsv4::sparse_attention::CombineParams params) {
  dsv4::sparse_attention::combine(params);
}
