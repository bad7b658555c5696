/* Many threads increment one counter. The control breaks the lock, and must fail. */
#include "check.h"
static pthread_mutex_t mutexes[] = {
    PTHREAD_MUTEX_INITIALIZER,
    PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP,
    PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP,
};
static volatile long counts[3];
static void *body(void *unused) {
    (void)unused;
    for (int i = 0; i < 30000; i++) {
        int k = i % 3;
        struct timespec at;
        if (i % 7 == 0) {
            at = after_ms(CLOCK_REALTIME, 0);
            if (pthread_mutex_timedlock(&mutexes[k], &at) != 0)
                pthread_mutex_lock(&mutexes[k]);
        } else {
            pthread_mutex_lock(&mutexes[k]);
        }
        long seen = counts[k];
        if (i % 64 == 0)
            sched_yield();
        counts[k] = seen + 1;
        pthread_mutex_unlock(&mutexes[k]);
    }
    return 0;
}
int main(void) {
    /* Held by the first thread when the second starts: it must be seen as held. */
    pthread_t threads[8];
    for (int k = 0; k < 3; k++)
        pthread_mutex_lock(&mutexes[k]);
    for (int i = 0; i < 8; i++)
        CHECK(pthread_create(&threads[i], 0, body, 0) == 0);
    usleep(30000);
    for (int k = 0; k < 3; k++) {
        CHECK(counts[k] == 0);
        pthread_mutex_unlock(&mutexes[k]);
    }
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], 0);
    CHECK(counts[0] + counts[1] + counts[2] == 8 * 30000);
    puts("ok");
    return 0;
}
