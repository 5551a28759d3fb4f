/* What a process that dies of SIGTERM does first: it lets another thread know, which says goodbye to the other hosts.
 *
 * The handler is in C because Python runs its own between two steps of the main thread, which may be far apart: a
 * process must not die later because of this.  A timer sends the signal once more, so that it dies within a moment
 * whatever its threads do.  A handler that the program sets up itself takes the place of this one, here or in Python. */

#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cdefs.h"

static pid_t owner;
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

static void on_terminated(int number)
{
    const uint64_t one = 1;
    const int before = errno;
    restore();
    /* A forked child has the handler, but not the timer and not the thread. */
    if (getpid() != owner || timer_settime(timer, 0, &moment, NULL) != 0
        || write(event_fd, &one, sizeof one) != (ssize_t)sizeof one)
        raise(number); /* delivered when this handler returns */
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
    if (sigaction(SIGTERM, NULL, &action) != 0 || action.sa_handler != SIG_DFL)
        return 0;
    memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGTERM;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0)
        return 0;
    owner = getpid();
    event_fd = fd;
    moment.it_value.tv_sec = milliseconds / 1000;
    moment.it_value.tv_nsec = milliseconds % 1000 * 1000000L;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_terminated;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGTERM, &action, NULL) != 0) {
        timer_delete(timer);
        return 0;
    }
    return 1;
}

void byteps_no_farewell(void)
{
    if (is_installed())
        restore();
    if (owner == getpid())
        timer_delete(timer);
    owner = 0;
}
