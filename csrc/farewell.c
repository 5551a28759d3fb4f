/* What a process that dies of SIGTERM does first: it lets another thread know, which says goodbye to the other hosts.
 *
 * The handler is in C because Python runs its own between two steps of the main thread, which may be far apart: a
 * process must not die later because of this.  A timer sends the signal once more, so that it dies within a moment
 * whatever its threads do.  Until then the signal is taken no more notice of: `timeout` and `make` send it twice at
 * once.  A handler that the program sets up itself takes the place of this one, here or in Python.
 *
 * The handler runs on any thread, and also in a child between fork and exec, which may share this memory (vfork): there
 * it changes nothing but the child's own signals. */

#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cdefs.h"

static volatile pid_t owner; /* 0: there is nobody to say goodbye */
static volatile sig_atomic_t was_told;
static int event_fd = -1;
static timer_t timer;
static struct itimerspec moment;

static void restore(void)
{
    struct sigaction plain;
    memset(&plain, 0, sizeof plain);
    plain.sa_handler = SIG_DFL;
    sigaction(SIGTERM, &plain, NULL);
}

/* Whether the timer is on its way: it is not once it has sent the signal, which may have merged with another one. */
static int is_waiting(void)
{
    struct itimerspec left;
    return timer_gettime(timer, &left) == 0 && (left.it_value.tv_sec != 0 || left.it_value.tv_nsec != 0);
}

static int begin(void)
{
    const uint64_t one = 1;
    if (timer_settime(timer, 0, &moment, NULL) != 0)
        return 0;
    was_told = 1; /* not before: another thread may be here, too */
    return write(event_fd, &one, sizeof one) == (ssize_t)sizeof one;
}

static void on_terminated(int number)
{
    const int before = errno;
    /* A forked child has the handler, but not the timer and not the thread. */
    if (getpid() != owner || !(was_told ? is_waiting() : begin())) {
        restore();
        raise(number); /* delivered when this handler returns */
    }
    errno = before;
}

static int is_installed(void)
{
    struct sigaction current;
    return sigaction(SIGTERM, NULL, &current) == 0 && current.sa_handler == on_terminated;
}

int byteps_farewell(int fd, int milliseconds)
{
    struct sigaction action;
    struct sigevent event;
    const pid_t self = getpid();
    if (self == 1) /* the first process of a container does not die of it at its default */
        return 0;
    if (owner != self && is_installed())
        restore(); /* inherited from a process that this one was forked from */
    if (sigaction(SIGTERM, NULL, &action) != 0 || action.sa_handler != SIG_DFL)
        return 0;
    memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGTERM;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0)
        return 0;
    owner = self;
    was_told = 0;
    event_fd = fd;
    moment.it_value.tv_sec = milliseconds / 1000;
    moment.it_value.tv_nsec = milliseconds % 1000 * 1000000L;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_terminated;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGTERM, &action, NULL) != 0) {
        timer_delete(timer);
        owner = 0;
        return 0;
    }
    return 1;
}

void byteps_no_farewell(void)
{
    if (is_installed())
        restore();
    if (owner == getpid() && !was_told) /* a timer that runs is to end this process */
        timer_delete(timer);
    owner = 0;
    event_fd = -1;
}
