/* The control: a lock that looks, then takes. */
#include <pthread.h>
#include <sched.h>
int pthread_mutex_lock(pthread_mutex_t *m) {
    volatile int *held = (int *)m;
    while (*held)
        sched_yield();
    /* Lets other threads read it as well, even on one busy processor. */
    sched_yield();
    *held = 1;
    return 0;
}
int pthread_mutex_timedlock(pthread_mutex_t *m, const struct timespec *at) {
    (void)at;
    return pthread_mutex_lock(m);
}
int pthread_mutex_unlock(pthread_mutex_t *m) {
    *(volatile int *)m = 0;
    return 0;
}
