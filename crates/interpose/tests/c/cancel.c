/* Cancelled waits: the mutex is held in the handlers, and no signal is lost. With an argument also
   at any instruction of a wait: more than POSIX asks, and than glibc does. */
#include "check.h"

static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t check = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
static pthread_mutex_t recursive = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_cond_t plain = PTHREAD_COND_INITIALIZER, shared;
static pthread_cond_t *c = &plain;
static int cleaned, inside, sent;

struct how {
    int which, async, pending;
    pthread_mutex_t *mutex;
};

static void cleanup(void *argument) {
    struct how *how = argument;
    /* Held by this very thread: an error-checking mutex would say. */
    CHECK(pthread_mutex_trylock(how->mutex) == (how->mutex == &recursive ? 0 : EBUSY));
    if (how->mutex == &recursive)
        CHECK(pthread_mutex_unlock(how->mutex) == 0);
    cleaned++;
    CHECK(pthread_mutex_unlock(how->mutex) == 0);
}

static void *sleeper(void *argument) {
    struct how *how = argument;
    struct timespec real = after_ms(CLOCK_REALTIME, 60000), mono = after_ms(CLOCK_MONOTONIC, 60000);
    int type;
    if (how->async)
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &type);
    CHECK(pthread_mutex_lock(how->mutex) == 0);
    pthread_cleanup_push(cleanup, how);
    __atomic_store_n(&inside, 1, __ATOMIC_RELEASE);
    while (how->pending && !__atomic_load_n(&sent, __ATOMIC_ACQUIRE))
        usleep(100);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &type);
    for (;;) {
        if (how->which == 0)
            pthread_cond_wait(c, how->mutex);
        else if (how->which == 1)
            pthread_cond_timedwait(c, how->mutex, &real);
        else
            pthread_cond_clockwait(c, how->mutex, CLOCK_MONOTONIC, &mono);
    }
    pthread_cleanup_pop(0);
    return 0;
}

static void one(struct how how) {
    pthread_t thread;
    void *result;
    cleaned = inside = sent = 0;
    CHECK(pthread_create(&thread, 0, sleeper, &how) == 0);
    while (!__atomic_load_n(&inside, __ATOMIC_ACQUIRE))
        usleep(100);
    /* Asleep, or with the cancellation waiting for it. */
    if (!how.pending)
        usleep(2000);
    CHECK(pthread_cancel(thread) == 0);
    __atomic_store_n(&sent, 1, __ATOMIC_RELEASE);
    CHECK(pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED && cleaned == 1);
    CHECK(pthread_mutex_trylock(how.mutex) == 0);
    CHECK(pthread_mutex_unlock(how.mutex) == 0);
}

/* Two wait; one is cancelled while one signal is sent. If the signal was for the cancelled
   thread, the other must get it. */
static int token, taken, racing, first_took;
static void unlock(void *mutex) { pthread_mutex_unlock(mutex); }
static void *racer(void *is_first) {
    pthread_mutex_lock(&m);
    pthread_cleanup_push(unlock, &m);
    racing++;
    while (token == 0)
        pthread_cond_wait(&plain, &m);
    token--;
    taken++;
    first_took |= is_first != 0;
    pthread_cleanup_pop(1);
    return 0;
}
static void race(int round) {
    pthread_t threads[2];
    token = taken = racing = first_took = 0;
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], 0, racer, i == 0 ? threads : 0) == 0);
    while (pthread_mutex_lock(&m), racing < 2) {
        pthread_mutex_unlock(&m);
        sched_yield();
    }
    token = 1;
    if (round % 2)
        pthread_cancel(threads[0]);
    pthread_cond_signal(&plain);
    pthread_mutex_unlock(&m);
    if (round % 2 == 0)
        pthread_cancel(threads[0]);
    /* The result of join does not help: glibc also reports a thread as cancelled if the cancellation
           came too late. */
    CHECK(pthread_join(threads[0], 0) == 0);
    if (first_took)
        pthread_cancel(threads[1]);
    CHECK(pthread_join(threads[1], 0) == 0);
    CHECK(taken == 1);
}

/* Cancelled at any moment of a wait, half of the time just as a signal comes. */
static void hurry(int async, unsigned round) {
    struct how how = {0, async, 0, &m};
    pthread_t thread;
    void *result;
    cleaned = inside = 0;
    CHECK(pthread_create(&thread, 0, sleeper, &how) == 0);
    while (!__atomic_load_n(&inside, __ATOMIC_ACQUIRE))
        sched_yield();
    if (round % 2) {
        CHECK(pthread_mutex_lock(&m) == 0);
        CHECK(pthread_cond_signal(c) == 0);
        CHECK(pthread_mutex_unlock(&m) == 0);
    }
    for (volatile unsigned i = 0; i < (round * 2654435761u >> 16) % 20000; i++)
        continue;
    CHECK(pthread_cancel(thread) == 0);
    CHECK(pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED && cleaned == 1);
    CHECK(pthread_mutex_trylock(&m) == 0);
    CHECK(pthread_mutex_unlock(&m) == 0);
}

/* A waiter that is signalled and cancelled at once, and a condition variable that is destroyed and
   overwritten as soon as that is allowed: after a broadcast. */
static pthread_cond_t *brief;
static void *brief_sleeper(void *unused) {
    (void)unused;
    pthread_mutex_lock(&m);
    pthread_cleanup_push(unlock, &m);
    __atomic_fetch_add(&racing, 1, __ATOMIC_RELEASE);
    pthread_cond_wait(brief, &m);
    pthread_cleanup_pop(1);
    return 0;
}
static void destroyed(int round) {
    pthread_t threads[2];
    racing = 0;
    brief = malloc(sizeof *brief);
    CHECK(pthread_cond_init(brief, 0) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], 0, brief_sleeper, 0) == 0);
    for (int waiting = 0; waiting < 2;) {
        pthread_mutex_lock(&m);
        waiting = racing;
        pthread_mutex_unlock(&m);
    }
    if (round % 2)
        usleep(50);
    CHECK(pthread_cond_signal(brief) == 0);
    CHECK(pthread_cancel(threads[round / 2 % 2]) == 0);
    CHECK(pthread_cond_broadcast(brief) == 0);
    CHECK(pthread_cond_destroy(brief) == 0);
    memset(brief, 0xff, sizeof *brief);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], 0) == 0);
    free(brief);
}

int main(int argc, char **argv) {
    (void)argv;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    CHECK(pthread_cond_init(&shared, &attr) == 0);
    pthread_mutex_t *mutexes[] = {&m, &check, &recursive};
    pthread_cond_t *conds[] = {&plain, &shared};
    for (int k = 0; k < 2; k++) {
        c = conds[k];
        for (int which = 0; which < 3; which++)
            for (int async = 0; async < 2; async++)
                for (int i = 0; i < 3; i++)
                    for (int pending = 0; pending < 2; pending++)
                        one((struct how){which, async, pending, mutexes[i]});
    }
    for (int round = 0; round < 400; round++)
        race(round);
    for (unsigned round = 0; round < 800; round++) {
        c = conds[round / 2 % 2];
        hurry(argc > 1 && round / 4 % 2, round);
    }
    for (int round = 0; round < 400; round++)
        destroyed(round);
    puts("ok");
    return 0;
}
