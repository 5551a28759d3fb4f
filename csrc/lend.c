/* Lends memory to libzmq, whose I/O thread gives it back by setting a flag.
 *
 * pyzmq's way to lend sends a message to a Python thread for each piece that comes back: that thread takes the GIL and
 * the core from the one that works.  Here nobody is woken; whoever lent looks at the flags when it is there anyway.
 *
 * libzmq is the one that pyzmq has loaded, so its functions come as pointers. */

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#include "cdefs.h"

/* zmq_msg_t: 64 bytes, as aligned as a pointer, and so for as long as libzmq keeps its ABI. */
typedef union {
    unsigned char bytes[64];
    void *pointer;
} message;

/* Not of the heap: an I/O thread may set a flag while the process is at its end. */
static int32_t lent[BYTEPS_MAX_LOANS];

static void give_back(void *data, void *flag)
{
    (void)data;
    __atomic_store_n((int32_t *)flag, 0, __ATOMIC_RELEASE);
}

int byteps_lend(const struct byteps_libzmq *libzmq, void *socket, void *data, size_t n_bytes, int flags, int loan)
{
    message each;
    int status;
    if (libzmq->init_data(&each, data, n_bytes, give_back, &lent[loan]) != 0)
        return errno;
    __atomic_store_n(&lent[loan], 1, __ATOMIC_RELEASE);
    if (libzmq->send(&each, socket, flags) >= 0)
        return 0;
    status = errno;
    libzmq->close(&each); /* gives the memory back */
    return status;
}

int byteps_is_lent(int loan)
{
    return __atomic_load_n(&lent[loan], __ATOMIC_ACQUIRE);
}
