/* A library that is loaded before ours and locks in its constructor, with its own allocator. */
#include "check.h"
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t r = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_rwlock_t l = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
int early_done;
static void *other(void *unused) {
    pthread_mutex_lock(&m);
    early_done++;
    pthread_cond_signal(&c);
    pthread_mutex_unlock(&m);
    return unused;
}
__attribute__((constructor)) static void early(void) {
    pthread_t thread;
    CHECK(pthread_mutex_lock(&m) == 0 && pthread_mutex_lock(&r) == 0);
    CHECK(pthread_mutex_lock(&r) == 0 && pthread_rwlock_wrlock(&l) == 0);
    CHECK(pthread_create(&thread, 0, other, 0) == 0);
    while (early_done == 0)
        CHECK(pthread_cond_wait(&c, &m) == 0);
    CHECK(pthread_rwlock_unlock(&l) == 0 && pthread_mutex_unlock(&m) == 0);
    CHECK(pthread_mutex_unlock(&r) == 0 && pthread_mutex_unlock(&r) == 0);
    CHECK(pthread_mutex_unlock(&m) == 0 || 1);
    CHECK(pthread_join(thread, 0) == 0);
}
