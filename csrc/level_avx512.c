/* AVX-512 with the extensions that came with the first server processors that had it (Skylake-SP, Zen 4).
 *
 * It brings more registers and choices by mask registers.  Vectors stay at 256 bits: buffers from NumPy and from the network lie
 * at no multiple of 64 bytes, so each access of 512 bits would touch two cache lines (8 sources of 4 MB were summed at
 * half the speed so), and some processors lower their clock for them. */

#include "kernels.h"

#if defined(__x86_64__)
#define LEVEL avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,prefer-vector-width=256")))
#define VECTOR_BYTES 32
#define HAVE_F16C
#include "level.h"
#endif
