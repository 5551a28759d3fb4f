/* AVX2 with F16C: Intel since Haswell, AMD since Excavator. */

#include "kernels.h"

#if defined(__x86_64__)
#define LEVEL avx2
#define TARGET __attribute__((target("avx2,f16c")))
#define VECTOR_BYTES 32
#define HAVE_F16C
#include "level.h"
#endif
