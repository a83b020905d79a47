// Sixteen lanes in two 256-bit registers: AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace outrider {
namespace OUTRIDER_ISA {

struct Float { __m256 a, b; };   // sixteen float32
struct Int { __m256i a, b; };    // sixteen int32
struct Bits { __m256i a, b; };   // 64 bytes

#define OUTRIDER_BOTH(f, x, y) {f(x.a, y.a), f(x.b, y.b)}
inline Float zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Float set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Float load(const float *p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float *p, Float x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
inline Float add(Float x, Float y) { return OUTRIDER_BOTH(_mm256_add_ps, x, y); }
inline Float sub(Float x, Float y) { return OUTRIDER_BOTH(_mm256_sub_ps, x, y); }
inline Float mul(Float x, Float y) { return OUTRIDER_BOTH(_mm256_mul_ps, x, y); }
inline Float div(Float x, Float y) { return OUTRIDER_BOTH(_mm256_div_ps, x, y); }
inline Float fma(Float x, Float y, Float z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline Float max(Float x, Float y) { return OUTRIDER_BOTH(_mm256_max_ps, x, y); }
inline Float min(Float x, Float y) { return OUTRIDER_BOTH(_mm256_min_ps, x, y); }
inline Float abs(Float x) {
  __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  return {_mm256_and_ps(x.a, mask), _mm256_and_ps(x.b, mask)};
}
inline Float round(Float x) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, kMode), _mm256_round_ps(x.b, kMode)};
}
inline __m256 scale_half(__m256 x, __m256 n) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
}
// x * 2^n for whole n whose result is normal.
inline Float scale(Float x, Float n) { return OUTRIDER_BOTH(scale_half, x, n); }
// x where the lane is below `count`, else `other`.
inline Float first(Float x, int count, Float other) {
  __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), limit = _mm256_set1_epi32(count);
  __m256 low = _mm256_castsi256_ps(_mm256_cmpgt_epi32(limit, lanes));
  __m256 high = _mm256_castsi256_ps(_mm256_cmpgt_epi32(limit, _mm256_add_epi32(lanes, _mm256_set1_epi32(8))));
  return {_mm256_blendv_ps(other.a, x.a, low), _mm256_blendv_ps(other.b, x.b, high)};
}

// The sum of all lanes: of lanes i and i + 8, then of those 4, 2 and 1 apart.
inline float total(Float x) {
  __m256 a = _mm256_add_ps(x.a, x.b);
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
inline float largest(Float x) {
  __m256 a = _mm256_max_ps(x.a, x.b);
  __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

inline Int izero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Int iset1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline Float to_float(Int x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline Int to_int(Float x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline __m256i words_of(Int x) {  // sixteen 16-bit words in order
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(x.a, x.b), 0xd8);
}
inline void store_bytes(int8_t *p, Int x) {
  __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
  _mm_storeu_si128((__m128i *)p, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

inline Bits load_bits(const void *p) {
  return {_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1)};
}
inline Float load_half(const uint16_t *p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}
inline __m256 bfloat_half(const uint16_t *p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
inline Float load_bfloat(const uint16_t *p) { return {bfloat_half(p), bfloat_half(p + 8)}; }
inline Float as_float(Bits x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }

inline __m256i round_half(__m256 x) {
  __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
}
inline Bits no_bits() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline __m256i low_half(__m256i x, bool high) {
  return high ? _mm256_srli_epi32(x, 16) : _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
}
inline __m256i high_half(__m256i x, bool high) {
  return high ? _mm256_and_si256(x, _mm256_set1_epi32((int32_t)0xffff0000)) : _mm256_slli_epi32(x, 16);
}
// In each lane the 16 bits of x (its high ones if x_high) and, above, those of y.
inline Bits halves(Bits x, bool x_high, Bits y, bool y_high) {
  return {_mm256_or_si256(low_half(x.a, x_high), high_half(y.a, y_high)),
          _mm256_or_si256(low_half(x.b, x_high), high_half(y.b, y_high))};
}

// Round to nearest even; the residue of NaN is not kept quiet, because no NaN is ever rounded on purpose.
inline Int bfloat_bits(Float x) { return {round_half(x.a), round_half(x.b)}; }
inline void store_bfloat(uint16_t *p, Float x) { _mm256_storeu_si256((__m256i *)p, words_of(bfloat_bits(x))); }

struct Pair { Float even, odd; };
inline __m256 even_of(__m256i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
inline __m256 odd_of(__m256i x) { return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32((int32_t)0xffff0000))); }
inline Pair pair(Bits x) { return {{even_of(x.a), even_of(x.b)}, {odd_of(x.a), odd_of(x.b)}}; }
inline Float dot_pair(Float sum, Pair w, uint32_t x) {
  __m256i xs = _mm256_set1_epi32((int32_t)x);
  __m256 even = even_of(xs), odd = odd_of(xs);
  return fma(w.odd, {odd, odd}, fma(w.even, {even, even}, sum));
}
template <int shift, int bias>
inline __m256 nibble_half(__m256i x) {
  __m256i nibble = _mm256_and_si256(_mm256_srli_epi32(x, shift), _mm256_set1_epi32(15));
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(nibble, _mm256_set1_epi32(bias)));
}
// Nibble t of each 16-bit word, less `bias`.
template <int t, int bias>
inline Pair nibble_pair(Bits x) {
  return {{nibble_half<4 * t, bias>(x.a), nibble_half<4 * t, bias>(x.b)},
          {nibble_half<16 + 4 * t, bias>(x.a), nibble_half<16 + 4 * t, bias>(x.b)}};
}
inline __m256 signed_byte(__m256i x, float more) {  // sign and magnitude in the low byte of each lane
  __m256 magnitude = _mm256_add_ps(_mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32(0x7f))), _mm256_set1_ps(more));
  __m256i sign = _mm256_slli_epi32(_mm256_and_si256(x, _mm256_set1_epi32(0x80)), 24);
  return _mm256_or_ps(magnitude, _mm256_castsi256_ps(sign));
}
template <int t>
inline __m256i half_words(__m256i x) {
  return t == 0 ? _mm256_unpacklo_epi8(x, _mm256_setzero_si256()) : _mm256_unpackhi_epi8(x, _mm256_setzero_si256());
}
// Low (t = 0) or high (t = 1) half, of each 16 bytes, of sign-and-magnitude bytes; `halves` are added to magnitudes.
template <int t, int halves>
inline Pair byte_pair(Bits x) {
  const float more = 0.5f * halves;
  __m256i a = half_words<t>(x.a), b = half_words<t>(x.b);
  return {{signed_byte(a, more), signed_byte(b, more)},
          {signed_byte(_mm256_srli_epi32(a, 16), more), signed_byte(_mm256_srli_epi32(b, 16), more)}};
}
inline __m256i quad_half(__m256i sum, __m256i w, __m256i x) {
  __m256i even = _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(0xff)), _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8));
  __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), _mm256_srai_epi16(x, 8));
  return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}
// Four unsigned bytes of w by four signed bytes of x, for each of sixteen outputs.
inline Int dot_quad(Int sum, Bits w, uint32_t x) {
  __m256i xs = _mm256_set1_epi32((int32_t)x);
  return {quad_half(sum.a, w.a, xs), quad_half(sum.b, w.b, xs)};
}
// Low (t = 0) or high (t = 1) nibble of each byte.
template <int t>
inline Bits nibble_quad(Bits x) {
  __m256i mask = _mm256_set1_epi8(15);
  if (t == 0) return {_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask)};
  return {_mm256_and_si256(_mm256_srli_epi16(x.a, 4), mask), _mm256_and_si256(_mm256_srli_epi16(x.b, 4), mask)};
}
#undef OUTRIDER_BOTH

}  // namespace OUTRIDER_ISA
}  // namespace outrider
