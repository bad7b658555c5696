/* Unlocking a free lock is undefined, and does no harm here. */
#include "check.h"

static void *try_both(void *m) {
    CHECK(pthread_mutex_trylock(m) == 0);
    CHECK(pthread_mutex_unlock(m) == 0);
    CHECK(pthread_mutex_lock(m) == 0);
    CHECK(pthread_mutex_unlock(m) == 0);
    return 0;
}

static void *read_and_write(void *l) {
    CHECK(pthread_rwlock_tryrdlock(l) == 0);
    CHECK(pthread_rwlock_trywrlock(l) == EBUSY);
    CHECK(pthread_rwlock_unlock(l) == 0);
    CHECK(pthread_rwlock_wrlock(l) == 0);
    CHECK(pthread_rwlock_unlock(l) == 0);
    CHECK(pthread_rwlock_rdlock(l) == 0);
    CHECK(pthread_rwlock_unlock(l) == 0);
    return 0;
}

static void mutex(void) {
    pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
    for (int i = 0; i < 3; i++) {
        IS(pthread_mutex_unlock(&m), 0);
        start_join(try_both, &m);
    }
}

static void rwlock(int kind) {
    pthread_rwlockattr_t attr;
    pthread_rwlock_t l;
    pthread_rwlockattr_init(&attr);
    IS(pthread_rwlockattr_setkind_np(&attr, kind), 0);
    IS(pthread_rwlock_init(&l, &attr), 0);
    for (int i = 0; i < 3; i++) {
        pthread_rwlock_unlock(&l);
        start_join(read_and_write, &l);
    }
}

int main(int argc, char **argv) {
    (void)argv;
    mutex();
    if (argc == 1) {
        rwlock(PTHREAD_RWLOCK_PREFER_READER_NP);
        rwlock(PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    }
    puts("ok");
    return 0;
}
