/* Every processor of the architecture: SSE2 on x86-64, NEON on aarch64. */

#define LEVEL baseline
#define TARGET
#define VECTOR_BYTES 16
#include "level.h"
