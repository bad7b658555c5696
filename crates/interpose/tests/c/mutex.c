/* Every function of mutexes, each kind, and the errors of POSIX. */
#include "check.h"

static void *try_it(void *mutex) { return (void *)(long)pthread_mutex_trylock(mutex); }
static void *unlock_it(void *mutex) { return (void *)(long)pthread_mutex_unlock(mutex); }
static int tried(pthread_mutex_t *mutex) { return (int)(long)start_join(try_it, mutex); }
static int unlocked(pthread_mutex_t *mutex) { return (int)(long)start_join(unlock_it, mutex); }

struct timed {
    pthread_mutex_t *mutex;
    clockid_t clock;
    int use_clock, result;
    long ms;
};
static void *timed_body(void *argument) {
    struct timed *timed = argument;
    struct timespec at = after_ms(timed->clock, timed->ms);
    timed->result = timed->use_clock ? pthread_mutex_clocklock(timed->mutex, timed->clock, &at)
                                     : pthread_mutex_timedlock(timed->mutex, &at);
    return 0;
}
static int timed(pthread_mutex_t *mutex, int use_clock, clockid_t clock, long ms) {
    struct timed timed = {mutex, clock, use_clock, -1, ms};
    start_join(timed_body, &timed);
    return timed.result;
}

static void kind(pthread_mutex_t *m, int type) {
    IS(pthread_mutex_lock(m), 0);
    CHECK(tried(m) == EBUSY);
    IS(pthread_mutex_destroy(m), EBUSY);
    struct timespec soon = after_ms(CLOCK_REALTIME, 20), mono = after_ms(CLOCK_MONOTONIC, 20);
    struct timespec bad = {soon.tv_sec, 1000000000};
    struct timespec past = {-5, 0};
    if (type == PTHREAD_MUTEX_RECURSIVE) {
        IS(pthread_mutex_lock(m), 0);
        IS(pthread_mutex_trylock(m), 0);
        IS(pthread_mutex_timedlock(m, &bad), 0);
        IS(pthread_mutex_clocklock(m, CLOCK_MONOTONIC, &mono), 0);
        for (int i = 0; i < 4; i++) {
            IS(pthread_mutex_unlock(m), 0);
            CHECK(tried(m) == EBUSY);
        }
    } else if (type == PTHREAD_MUTEX_ERRORCHECK) {
        IS(pthread_mutex_lock(m), EDEADLK);
        IS(pthread_mutex_trylock(m), EBUSY);
        IS(pthread_mutex_timedlock(m, &soon), EDEADLK);
        IS(pthread_mutex_clocklock(m, CLOCK_MONOTONIC, &mono), EDEADLK);
    } else {
        IS(pthread_mutex_trylock(m), EBUSY);
        IS(pthread_mutex_timedlock(m, &soon), ETIMEDOUT);
        IS(pthread_mutex_clocklock(m, CLOCK_MONOTONIC, &mono), ETIMEDOUT);
        IS(pthread_mutex_timedlock(m, &bad), EINVAL);
        IS(pthread_mutex_timedlock(m, &past), ETIMEDOUT);
    }
    CHECK(timed(m, 0, CLOCK_REALTIME, 20) == ETIMEDOUT);
    CHECK(timed(m, 1, CLOCK_REALTIME, 20) == ETIMEDOUT);
    CHECK(timed(m, 1, CLOCK_MONOTONIC, 20) == ETIMEDOUT);
    IS(pthread_mutex_clocklock(m, CLOCK_PROCESS_CPUTIME_ID, &mono), EINVAL);
    if (type == PTHREAD_MUTEX_RECURSIVE || type == PTHREAD_MUTEX_ERRORCHECK)
        CHECK(unlocked(m) == EPERM);
    IS(pthread_mutex_unlock(m), 0);
    if (type == PTHREAD_MUTEX_RECURSIVE || type == PTHREAD_MUTEX_ERRORCHECK)
        IS(pthread_mutex_unlock(m), EPERM);
    IS(pthread_mutex_consistent(m), EINVAL);
    /* Bad times do not matter where there is nothing to wait for. */
    IS(pthread_mutex_timedlock(m, &bad), 0);
    IS(pthread_mutex_unlock(m), 0);
    IS(pthread_mutex_destroy(m), 0);
    IS(pthread_mutex_lock(m), EINVAL);
}

int main(void) {
    pthread_mutex_t fixed[] = {
        PTHREAD_MUTEX_INITIALIZER,
        PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP,
        PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP,
        PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP,
    };
    int types[] = {PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_RECURSIVE, PTHREAD_MUTEX_ERRORCHECK,
                   PTHREAD_MUTEX_ADAPTIVE_NP};
    for (int i = 0; i < 4; i++)
        kind(&fixed[i], types[i]);
    for (int i = 0; i < 4; i++) {
        pthread_mutexattr_t attr;
        pthread_mutex_t *m = malloc(sizeof *m);
        pthread_mutexattr_init(&attr);
        pthread_mutexattr_settype(&attr, types[i]);
        /* Dirt, and the same address again and again. */
        for (int round = 0; round < 3; round++) {
            memset(m, 0xa5, sizeof *m);
            IS(pthread_mutex_init(m, &attr), 0);
            kind(m, types[i]);
        }
        free(m);
    }
    /* A normal mutex may, in practice, be unlocked by another thread. */
    pthread_mutex_t m;
    memset(&m, 0xff, sizeof m);
    IS(pthread_mutex_init(&m, 0), 0);
    IS(pthread_mutex_lock(&m), 0);
    CHECK(unlocked(&m) == 0);
    IS(pthread_mutex_trylock(&m), 0);
    IS(pthread_mutex_unlock(&m), 0);
    /* A thread that ends with a recursive mutex leaves it locked, to its successor too. */
    pthread_mutex_t left = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    CHECK(tried(&left) == 0);
    CHECK(tried(&left) == EBUSY);
    CHECK(pthread_mutex_trylock(&left) == EBUSY);
    puts("ok");
    return 0;
}
