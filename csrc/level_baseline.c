/* Every processor of the architecture: SSE2 on x86-64, NEON on aarch64. */

#define LEVEL baseline
#define TARGET
#include "level.h"
