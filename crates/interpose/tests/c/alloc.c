/* Counts allocations: there are none on any path of ours, and a mutex inside malloc is no problem. */
#include "check.h"
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
static pthread_mutex_t inner = PTHREAD_MUTEX_INITIALIZER;
static volatile long allocations, counting;
static void count(void) {
    pthread_mutex_lock(&inner);
    if (counting)
        allocations++;
    pthread_mutex_unlock(&inner);
}
void *malloc(size_t n) { count(); return __libc_malloc(n); }
void *calloc(size_t n, size_t m) { count(); return __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { count(); return __libc_realloc(p, n); }

static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t l = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t barrier;
static void *body(void *unused) {
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 2000; i++) {
        struct timespec at = after_ms(CLOCK_REALTIME, 0);
        pthread_mutex_lock(&m);
        if (i % 500 == 0) {
            usleep(100);
            pthread_cond_timedwait(&c, &m, &at);
        }
        pthread_cond_broadcast(&c);
        pthread_mutex_unlock(&m);
        (i % 5 ? pthread_rwlock_rdlock : pthread_rwlock_wrlock)(&l);
        pthread_rwlock_unlock(&l);
    }
    pthread_barrier_wait(&barrier);
    return unused;
}
int main(void) {
    pthread_t threads[6];
    pthread_barrier_init(&barrier, 0, 7);
    for (int i = 0; i < 6; i++)
        CHECK(pthread_create(&threads[i], 0, body, 0) == 0);
    counting = 1;
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    counting = 0;
    for (int i = 0; i < 6; i++)
        pthread_join(threads[i], 0);
    CHECK(allocations == 0);
    void *p = malloc(10);
    counting = 1;
    p = realloc(p, 100000);
    counting = 0;
    CHECK(allocations == 1); /* the counter counts */
    free(p);
    puts("ok");
    return 0;
}
