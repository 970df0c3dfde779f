// sparse_attention: attention of a few query rows to the window's and the entries' rows of two paged fp8 caches, and the
// kernel that combines splits. Grid: (groups of tokens, blocks of heads, splits); 8 waves a workgroup.
#include "combine.hpp"
#include "wave.hpp"

namespace dsv4::sparse_attention {

template <int TILES, bool Sharing, bool Scrub>
DSV4_DEVICE void attend(const Params &params, Lds<TILES> &lds) {
  const int token = static_cast<int>(__builtin_amdgcn_workgroup_id_x()) * (Sharing ? params.group_tokens : 1);
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
