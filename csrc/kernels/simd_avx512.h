// Sixteen lanes in one 512-bit register. With OUTRIDER_VNNI the products of bfloat16 pairs and of byte quads are
// single instructions; without, they are built from AVX-512F/BW ones.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace outrider {
namespace OUTRIDER_ISA {

struct Float { __m512 v; };  // sixteen float32
struct Int { __m512i v; };   // sixteen int32
struct Bits { __m512i v; };  // 64 bytes

inline Float zero() { return {_mm512_setzero_ps()}; }
inline Float set1(float x) { return {_mm512_set1_ps(x)}; }
inline Float load(const float *p) { return {_mm512_loadu_ps(p)}; }
inline void store(float *p, Float x) { _mm512_storeu_ps(p, x.v); }
inline Float add(Float a, Float b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Float sub(Float a, Float b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Float mul(Float a, Float b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Float div(Float a, Float b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Float fma(Float a, Float b, Float c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Float max(Float a, Float b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Float min(Float a, Float b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Float abs(Float a) { return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7fffffff)))}; }
inline Float round(Float a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// x * 2^n for whole n whose result is normal.
inline Float scale(Float x, Float n) {
  __m512i shift = _mm512_slli_epi32(_mm512_cvtps_epi32(n.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x.v), shift))};
}
// x where the lane is below `count`, else `other`.
inline Float first(Float x, int count, Float other) {
  __mmask16 mask = count >= 16 ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
  return {_mm512_mask_blend_ps(mask, other.v, x.v)};
}

// The sum of all lanes: of lanes i and i + 8, then of those 4, 2 and 1 apart.
inline float total(Float x) {
  __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
inline float largest(Float x) { return _mm512_reduce_max_ps(x.v); }

inline Int izero() { return {_mm512_setzero_si512()}; }
inline Int iset1(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline Float to_float(Int x) { return {_mm512_cvtepi32_ps(x.v)}; }
inline Int to_int(Float x) { return {_mm512_cvtps_epi32(x.v)}; }
inline void store_bytes(int8_t *p, Int x) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(x.v)); }

inline Bits load_bits(const void *p) { return {_mm512_loadu_si512(p)}; }
inline Float load_half(const uint16_t *p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p))}; }
inline Float load_bfloat(const uint16_t *p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16))};
}
inline Float as_float(Bits x) { return {_mm512_castsi512_ps(x.v)}; }

inline Bits no_bits() { return {_mm512_setzero_si512()}; }
// In each lane the 16 bits of a (its high ones if a_high) and, above, those of b.
inline Bits halves(Bits a, bool a_high, Bits b, bool b_high) {
  __m512i low = a_high ? _mm512_srli_epi32(a.v, 16) : _mm512_and_si512(a.v, _mm512_set1_epi32(0xffff));
  __m512i high = b_high ? _mm512_and_si512(b.v, _mm512_set1_epi32((int32_t)0xffff0000)) : _mm512_slli_epi32(b.v, 16);
  return {_mm512_or_si512(low, high)};
}

// Round to nearest even; the residue of NaN is not kept quiet, because no NaN is ever rounded on purpose.
inline Int bfloat_bits(Float x) {
  __m512i bits = _mm512_castps_si512(x.v);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return {_mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16)};
}
inline void store_bfloat(uint16_t *p, Float x) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(bfloat_bits(x).v)); }

#ifdef OUTRIDER_VNNI
// Two bfloat16 weights for each of sixteen outputs.
using Pair = Bits;
inline Pair pair(Bits x) { return x; }
inline Float dot_pair(Float sum, Pair w, uint32_t x) {
  return {_mm512_dpbf16_ps(sum.v, (__m512bh)w.v, (__m512bh)_mm512_set1_epi32((int32_t)x))};
}
// Tables stand outside the functions that are made for each t: those share the registers that hold them.
template <int bias>
struct NibbleTable {  // levels less `bias` as bfloat16, twice
  uint16_t at[32];
  constexpr NibbleTable() : at() {
    for (int i = 0; i < 32; ++i) {
      int n = (i & 15) - bias, m = n < 0 ? -n : n, e = 0;
      while (m >> (e + 1)) ++e;
      at[i] = m == 0 ? 0 : (uint16_t)((n < 0 ? 0x8000 : 0) | ((127 + e) << 7) | ((m << (7 - e)) & 0x7f));
    }
  }
};
template <int bias>
alignas(64) inline constexpr NibbleTable<bias> kNibbles;
// Nibble t of each 16-bit word, less `bias`, as bfloat16. The table repeats itself, so the bit above the nibble may be any.
template <int t, int bias>
inline Pair nibble_pair(Bits x) {
  return {_mm512_permutexvar_epi16(_mm512_srli_epi16(x.v, 4 * t), _mm512_load_si512(&kNibbles<bias>))};
}
template <int halves>
struct ByteTable {  // both bytes of magnitudes, with `halves` added, as bfloat16
  uint8_t low[128], high[128];
  constexpr ByteTable() : low(), high() {
    for (int m = 0; m < 128; ++m) {
      int e = 0, twice = 2 * m + halves;
      while (twice >> (e + 1)) ++e;
      int bits = twice == 0 ? 0 : ((126 + e) << 7) | ((twice << (7 - e)) & 0x7f);
      low[m] = (uint8_t)bits;
      high[m] = (uint8_t)(bits >> 8);
    }
  }
};
template <int halves>
alignas(64) inline constexpr ByteTable<halves> kBytes;
// Low (t = 0) or high (t = 1) half, of each 16 bytes, of sign-and-magnitude bytes; `halves` are added to magnitudes.
template <int t, int halves>
inline Pair byte_pair(Bits x) {
  const ByteTable<halves> &table = kBytes<halves>;
  __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(table.low), x.v, _mm512_load_si512(table.low + 64));
  __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(table.high), x.v, _mm512_load_si512(table.high + 64));
  high = _mm512_ternarylogic_epi32(high, x.v, _mm512_set1_epi8((char)0x80), 0xf8);  // high | (x & sign)
  return {t == 0 ? _mm512_unpacklo_epi8(low, high) : _mm512_unpackhi_epi8(low, high)};
}
// Four unsigned bytes of w by four signed bytes of x, for each of sixteen outputs.
inline Int dot_quad(Int sum, Bits w, uint32_t x) { return {_mm512_dpbusd_epi32(sum.v, w.v, _mm512_set1_epi32((int32_t)x))}; }
#else
struct Pair { Float even, odd; };
inline Float even_of(__m512i x) { return {_mm512_castsi512_ps(_mm512_slli_epi32(x, 16))}; }
inline Float odd_of(__m512i x) { return {_mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int32_t)0xffff0000)))}; }
inline Pair pair(Bits x) { return {even_of(x.v), odd_of(x.v)}; }
inline Float dot_pair(Float sum, Pair w, uint32_t x) {
  __m512i xs = _mm512_set1_epi32((int32_t)x);
  return fma(w.odd, odd_of(xs), fma(w.even, even_of(xs), sum));
}
template <int t, int bias>
inline Pair nibble_pair(Bits x) {
  __m512 table = _mm512_sub_ps(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_ps(bias));
  return {{_mm512_permutexvar_ps(_mm512_srli_epi32(x.v, 4 * t), table)},
          {_mm512_permutexvar_ps(_mm512_srli_epi32(x.v, 16 + 4 * t), table)}};
}
inline Float signed_byte(__m512i x, float more) {  // sign and magnitude in the low byte of each lane
  __m512 magnitude = _mm512_add_ps(_mm512_cvtepi32_ps(_mm512_and_si512(x, _mm512_set1_epi32(0x7f))), _mm512_set1_ps(more));
  __m512i sign = _mm512_slli_epi32(_mm512_and_si512(x, _mm512_set1_epi32(0x80)), 24);
  return {_mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(magnitude), sign))};
}
template <int t, int halves>
inline Pair byte_pair(Bits x) {
  __m512i none = _mm512_setzero_si512();
  __m512i words = t == 0 ? _mm512_unpacklo_epi8(x.v, none) : _mm512_unpackhi_epi8(x.v, none);
  return {signed_byte(words, 0.5f * halves), signed_byte(_mm512_srli_epi32(words, 16), 0.5f * halves)};
}
inline Int dot_quad(Int sum, Bits w, uint32_t x) {
  __m512i xs = _mm512_set1_epi32((int32_t)x);
  __m512i even = _mm512_madd_epi16(_mm512_and_si512(w.v, _mm512_set1_epi16(0xff)), _mm512_srai_epi16(_mm512_slli_epi16(xs, 8), 8));
  __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(w.v, 8), _mm512_srai_epi16(xs, 8));
  return {_mm512_add_epi32(sum.v, _mm512_add_epi32(even, odd))};
}
#endif
// Low (t = 0) or high (t = 1) nibble of each byte.
template <int t>
inline Bits nibble_quad(Bits x) {
  return {_mm512_and_si512(t == 0 ? x.v : _mm512_srli_epi16(x.v, 4), _mm512_set1_epi8(15))};
}

}  // namespace OUTRIDER_ISA
}  // namespace outrider
