/* AVX2 with F16C: Intel since Haswell, AMD since Excavator. */

#include "kernels.h"

#if defined(__x86_64__)
#define LEVEL avx2
#define TARGET __attribute__((target("avx2,f16c")))
#include "half_f16c.h"
#include "level.h"
#endif
