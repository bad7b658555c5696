/* Condition variables: every wait, both clocks, each kind of mutex, and those not ours. */
#include "check.h"

static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static int tokens, waiting;

static void *taker(void *use) {
    struct timespec at = after_ms(CLOCK_REALTIME, 60000), mono = after_ms(CLOCK_MONOTONIC, 60000);
    CHECK(pthread_mutex_lock(&m) == 0);
    waiting++;
    while (tokens == 0) {
        int result = (long)use % 3 == 0   ? pthread_cond_wait(&c, &m)
                     : (long)use % 3 == 1 ? pthread_cond_timedwait(&c, &m, &at)
                                          : pthread_cond_clockwait(&c, &m, CLOCK_MONOTONIC, &mono);
        CHECK(result == 0);
    }
    tokens--;
    waiting--;
    CHECK(pthread_mutex_unlock(&m) == 0);
    return 0;
}

static void timeouts(pthread_cond_t *cond, clockid_t clock, pthread_mutex_t *mutex) {
    struct timespec at = after_ms(clock, 30), now, bad = {1, -1}, past = {-1, 0};
    IS(pthread_mutex_lock(mutex), 0);
    IS(pthread_cond_timedwait(cond, mutex, &at), ETIMEDOUT);
    clock_gettime(clock, &now);
    CHECK(now.tv_sec > at.tv_sec || (now.tv_sec == at.tv_sec && now.tv_nsec >= at.tv_nsec));
    clockid_t clocks[] = {CLOCK_REALTIME, CLOCK_MONOTONIC};
    for (int i = 0; i < 2; i++) {
        at = after_ms(clocks[i], 30);
        IS(pthread_cond_clockwait(cond, mutex, clocks[i], &at), ETIMEDOUT);
        clock_gettime(clocks[i], &now);
        CHECK(now.tv_sec > at.tv_sec || (now.tv_sec == at.tv_sec && now.tv_nsec >= at.tv_nsec));
    }
    IS(pthread_cond_timedwait(cond, mutex, &past), ETIMEDOUT);
    IS(pthread_cond_timedwait(cond, mutex, &bad), EINVAL);
    IS(pthread_cond_clockwait(cond, mutex, CLOCK_PROCESS_CPUTIME_ID, &at), EINVAL);
    IS(pthread_mutex_unlock(mutex), 0);
}

static pthread_mutex_t *other_mutex;
static pthread_cond_t *other_cond;
static int ready;
static void *other_waiter(void *depth) {
    for (long i = 0; i < (long)depth; i++)
        CHECK(pthread_mutex_lock(other_mutex) == 0);
    while (ready == 0)
        CHECK(pthread_cond_wait(other_cond, other_mutex) == 0);
    ready--;
    for (long i = 0; i < (long)depth; i++)
        CHECK(pthread_mutex_unlock(other_mutex) == 0);
    return 0;
}
/* Two waiters and a signal each, on any pair of objects. */
static void pair(pthread_mutex_t *mutex, pthread_cond_t *cond, long depth) {
    pthread_t threads[2];
    other_mutex = mutex;
    other_cond = cond;
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 2; i++)
            CHECK(pthread_create(&threads[i], 0, other_waiter, (void *)depth) == 0);
        if (round % 4 == 0)
            usleep(20000);
        for (int i = 0; i < 2; i++) {
            CHECK(pthread_mutex_lock(mutex) == 0);
            ready++;
            if (round % 2)
                CHECK(pthread_cond_signal(cond) == 0);
            CHECK(pthread_mutex_unlock(mutex) == 0);
            if (round % 2 == 0)
                CHECK(pthread_cond_broadcast(cond) == 0);
        }
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], 0);
    }
    timeouts(cond, CLOCK_REALTIME, mutex);
}

int main(void) {
    pthread_t threads[12];
    for (int i = 0; i < 12; i++)
        CHECK(pthread_create(&threads[i], 0, taker, (void *)(long)i) == 0);
    while (pthread_mutex_lock(&m), waiting < 12) {
        pthread_mutex_unlock(&m);
        usleep(1000);
    }
    tokens = 5;
    for (int i = 0; i < 5; i++)
        IS(pthread_cond_signal(&c), 0);
    pthread_mutex_unlock(&m);
    while (pthread_mutex_lock(&m), waiting != 7) {
        pthread_mutex_unlock(&m);
        usleep(1000);
    }
    tokens = 7;
    IS(pthread_cond_broadcast(&c), 0);
    pthread_mutex_unlock(&m);
    for (int i = 0; i < 12; i++)
        pthread_join(threads[i], 0);
    CHECK(tokens == 0);
    IS(pthread_cond_destroy(&c), 0);

    pthread_condattr_t mono, shared;
    pthread_cond_t mono_cond, shared_cond, plain = PTHREAD_COND_INITIALIZER;
    pthread_condattr_init(&mono);
    pthread_condattr_setclock(&mono, CLOCK_MONOTONIC);
    memset(&mono_cond, 0xaa, sizeof mono_cond);
    IS(pthread_cond_init(&mono_cond, &mono), 0);
    timeouts(&mono_cond, CLOCK_MONOTONIC, &m);
    pthread_condattr_init(&shared);
    pthread_condattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    IS(pthread_cond_init(&shared_cond, &shared), 0);

    pthread_mutex_t recursive = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    pthread_mutex_t check = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
    pthread_mutex_t pshared, robust, inherit;
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    IS(pthread_mutex_init(&pshared, &attr), 0);
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    IS(pthread_mutex_init(&robust, &attr), 0);
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_INHERIT);
    IS(pthread_mutex_init(&inherit, &attr), 0);

    IS(pthread_cond_wait(&plain, &check), EPERM);
    pthread_cond_t *conds[] = {&plain, &shared_cond};
    pthread_mutex_t *mutexes[] = {&m, &check, &pshared, &robust, &inherit};
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 5; j++)
            pair(mutexes[j], conds[i], 1);
    }
    /* glibc's own wait releases a recursive mutex once; ours, as often as it is held. */
    pair(&recursive, &plain, 1);
    IS(pthread_cond_destroy(&mono_cond), 0);
    IS(pthread_cond_destroy(&shared_cond), 0);
    IS(pthread_cond_destroy(&plain), 0);
    puts("ok");
    return 0;
}
