/* Every function of reader-writer locks and spin locks, and the errors of POSIX and glibc. */
#include "check.h"

static void *tryrd(void *l) { return (void *)(long)pthread_rwlock_tryrdlock(l); }
static void *trywr(void *l) { return (void *)(long)pthread_rwlock_trywrlock(l); }
static void *tryrd_unlock(void *l) {
    long result = pthread_rwlock_tryrdlock(l);
    if (result == 0)
        pthread_rwlock_unlock(l);
    return (void *)result;
}
static void *rd_timed(void *l) {
    struct timespec real = after_ms(CLOCK_REALTIME, 20), mono = after_ms(CLOCK_MONOTONIC, 40);
    CHECK(pthread_rwlock_timedrdlock(l, &real) == ETIMEDOUT);
    CHECK(pthread_rwlock_clockrdlock(l, CLOCK_MONOTONIC, &mono) == ETIMEDOUT);
    real = after_ms(CLOCK_REALTIME, 20);
    CHECK(pthread_rwlock_clockrdlock(l, CLOCK_REALTIME, &real) == ETIMEDOUT);
    return 0;
}
static void *wr_timed(void *l) {
    struct timespec real = after_ms(CLOCK_REALTIME, 20), mono = after_ms(CLOCK_MONOTONIC, 40);
    CHECK(pthread_rwlock_timedwrlock(l, &real) == ETIMEDOUT);
    CHECK(pthread_rwlock_clockwrlock(l, CLOCK_MONOTONIC, &mono) == ETIMEDOUT);
    real = after_ms(CLOCK_REALTIME, 20);
    CHECK(pthread_rwlock_clockwrlock(l, CLOCK_REALTIME, &real) == ETIMEDOUT);
    return 0;
}
static void *rd(void *l) {
    CHECK(pthread_rwlock_rdlock(l) == 0);
    CHECK(pthread_rwlock_unlock(l) == 0);
    return 0;
}
static void *wr(void *l) {
    CHECK(pthread_rwlock_wrlock(l) == 0);
    CHECK(pthread_rwlock_unlock(l) == 0);
    return 0;
}

static void plain(pthread_rwlock_t *l) {
    struct timespec past = {-1, 0}, bad = {1, 1000000000}, far = after_ms(CLOCK_MONOTONIC, 60000);
    IS(pthread_rwlock_rdlock(l), 0);
    CHECK(start_join(tryrd_unlock, l) == 0);
    CHECK((long)start_join(trywr, l) == EBUSY);
    start_join(wr_timed, l);
    IS(pthread_rwlock_rdlock(l), 0);
    IS(pthread_rwlock_timedrdlock(l, &past), 0);
    IS(pthread_rwlock_timedrdlock(l, &bad), EINVAL);
    IS(pthread_rwlock_timedwrlock(l, &bad), EINVAL);
    IS(pthread_rwlock_clockrdlock(l, CLOCK_PROCESS_CPUTIME_ID, &far), EINVAL);
    IS(pthread_rwlock_trywrlock(l), EBUSY);
    for (int i = 0; i < 3; i++)
        IS(pthread_rwlock_unlock(l), 0);
    IS(pthread_rwlock_wrlock(l), 0);
    IS(pthread_rwlock_wrlock(l), EDEADLK);
    IS(pthread_rwlock_rdlock(l), EDEADLK);
    IS(pthread_rwlock_clockrdlock(l, CLOCK_MONOTONIC, &far), EDEADLK);
    IS(pthread_rwlock_clockwrlock(l, CLOCK_MONOTONIC, &far), EDEADLK);
    IS(pthread_rwlock_tryrdlock(l), EBUSY);
    IS(pthread_rwlock_trywrlock(l), EBUSY);
    CHECK((long)start_join(tryrd, l) == EBUSY);
    CHECK((long)start_join(trywr, l) == EBUSY);
    start_join(rd_timed, l);
    start_join(wr_timed, l);
    IS(pthread_rwlock_unlock(l), 0);
    IS(pthread_rwlock_trywrlock(l), 0);
    IS(pthread_rwlock_unlock(l), 0);
    IS(pthread_rwlock_timedwrlock(l, &past), 0);
    IS(pthread_rwlock_unlock(l), 0);
}

/* Whether a thread that reads may read again while a writer waits. */
static void recursive_readers(int kind) {
    pthread_rwlockattr_t attr;
    pthread_rwlock_t l;
    pthread_t writer;
    pthread_rwlockattr_init(&attr);
    IS(pthread_rwlockattr_setkind_np(&attr, kind), 0);
    IS(pthread_rwlock_init(&l, &attr), 0);
    IS(pthread_rwlock_rdlock(&l), 0);
    CHECK(pthread_create(&writer, 0, wr, &l) == 0);
    usleep(100000);
    if (kind == PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP) {
        struct timespec at = after_ms(CLOCK_REALTIME, 30);
        CHECK((long)start_join(tryrd, &l) == EBUSY);
        IS(pthread_rwlock_timedrdlock(&l, &at), ETIMEDOUT);
    } else {
        IS(pthread_rwlock_rdlock(&l), 0);
        IS(pthread_rwlock_tryrdlock(&l), 0);
        /* The holder waits for another reader to lock and unlock. */
        start_join(rd, &l);
        IS(pthread_rwlock_unlock(&l), 0);
        IS(pthread_rwlock_unlock(&l), 0);
    }
    IS(pthread_rwlock_unlock(&l), 0);
    CHECK(pthread_join(writer, 0) == 0);
    IS(pthread_rwlock_destroy(&l), 0);
}

/* A reader queued behind a writer gets the lock although a later reader, which waits for it, passed it. */
static pthread_rwlock_t meeting = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t both;
static void *meet(void *unused) {
    (void)unused;
    pthread_rwlock_rdlock(&meeting);
    pthread_barrier_wait(&both);
    pthread_rwlock_unlock(&meeting);
    return 0;
}
static void *visit(void *unused) {
    (void)unused;
    for (int i = 0; i < 40; i++) {
        pthread_rwlock_wrlock(&meeting);
        usleep(50);
        pthread_rwlock_unlock(&meeting);
    }
    return 0;
}
static void readers_meet(void) {
    CHECK(pthread_barrier_init(&both, 0, 2) == 0);
    for (int i = 0; i < 100; i++) {
        pthread_t threads[4];
        pthread_rwlock_wrlock(&meeting);
        for (int j = 0; j < 4; j++)
            CHECK(pthread_create(&threads[j], 0, j < 2 ? meet : visit, 0) == 0);
        usleep(i * 10);
        pthread_rwlock_unlock(&meeting);
        for (int j = 0; j < 4; j++)
            pthread_join(threads[j], 0);
    }
}

static pthread_rwlock_t busy = PTHREAD_RWLOCK_INITIALIZER;
static pthread_spinlock_t spin;
static long written, spun;
static void *hammer(void *unused) {
    (void)unused;
    for (int i = 0; i < 20000; i++) {
        if (i % 8 == 0) {
            pthread_rwlock_wrlock(&busy);
            written++;
        } else {
            pthread_rwlock_rdlock(&busy);
        }
        pthread_rwlock_unlock(&busy);
        pthread_spin_lock(&spin);
        spun++;
        pthread_spin_unlock(&spin);
    }
    return 0;
}
static void *spin_try(void *s) { return (void *)(long)pthread_spin_trylock(s); }

int main(void) {
    pthread_rwlock_t fixed = PTHREAD_RWLOCK_INITIALIZER;
    pthread_rwlock_t fixed_writer = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
    plain(&fixed);
    plain(&fixed_writer);
    pthread_rwlock_t *again = malloc(sizeof *again);
    for (int i = 0; i < 3; i++) {
        memset(again, 0x5a, sizeof *again);
        IS(pthread_rwlock_init(again, 0), 0);
        plain(again);
        IS(pthread_rwlock_destroy(again), 0);
    }
    recursive_readers(PTHREAD_RWLOCK_PREFER_READER_NP);
    recursive_readers(PTHREAD_RWLOCK_PREFER_WRITER_NP);
    recursive_readers(PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    readers_meet();
    IS(pthread_spin_init(&spin, PTHREAD_PROCESS_PRIVATE), 0);
    IS(pthread_spin_lock(&spin), 0);
    IS(pthread_spin_trylock(&spin), EBUSY);
    CHECK((long)start_join(spin_try, (void *)&spin) == EBUSY);
    IS(pthread_spin_unlock(&spin), 0);
    IS(pthread_spin_trylock(&spin), 0);
    IS(pthread_spin_unlock(&spin), 0);
    pthread_t threads[6];
    for (int i = 0; i < 6; i++)
        CHECK(pthread_create(&threads[i], 0, hammer, 0) == 0);
    for (int i = 0; i < 6; i++)
        pthread_join(threads[i], 0);
    CHECK(written == 6 * 2500 && spun == 6 * 20000);
    IS(pthread_spin_destroy(&spin), 0);
    puts("ok");
    return 0;
}
