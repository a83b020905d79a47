// Compiled once per instruction set: OUTRIDER_ISA names the namespace, OUTRIDER_ISA_NAME the set.
#if defined(__AVX512F__)
#define OUTRIDER_REGISTERS 32
#include "simd_avx512.h"
#else
#define OUTRIDER_REGISTERS 16
#include "simd_avx2.h"
#endif

#include "attention.h"
#include "product.h"

namespace outrider {
namespace OUTRIDER_ISA {

extern const Kernels kTable;
const Kernels kTable = {
    OUTRIDER_ISA_NAME,  kWidths,
    kMaxQueries,        product,
    prepare,            rms_norm,
    swiglu,             rotate,
    store_key<float>,   store_value<float>,
    attend<float>,      store_key<uint16_t>,
    store_value<uint16_t>, attend<uint16_t>,
    multiply,           read,
};

}  // namespace OUTRIDER_ISA
}  // namespace outrider
