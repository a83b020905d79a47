// Compiled once per instruction set: OUTRIDER_ISA names the namespace, OUTRIDER_ISA_NAME the set.
#if defined(__AVX512F__)
#define OUTRIDER_REGISTERS 32
#include "simd_avx512.h"
#else
#define OUTRIDER_REGISTERS 16
#include "simd_avx2.h"
#endif

#include "attention.h"
#include "contenders.h"
#include "product.h"

namespace outrider {
namespace OUTRIDER_ISA {

template <class Cache>
constexpr CacheKernels cache_kernels() {
  return {round_query<Cache>, store_key<Cache>, store_value<Cache>, scores<Cache>, soften<Cache>, mix<Cache>};
}

extern const Kernels kTable;
const Kernels kTable = {
    OUTRIDER_ISA_NAME,
    kWidths,
    kMaxQueries,
    product,
    prepare,
    rms_norm,
    swiglu,
    rotate,
    cache_kernels<Float32Cache>(),
    cache_kernels<Bfloat16Cache>(),
    multiply,
    read,
    peaks,
    contenders,
};

}  // namespace OUTRIDER_ISA
}  // namespace outrider
