/* To lock is no point of cancellation: a thread with one pending takes a contended lock. It is the
   first contended one of its process, where a library may look at files: `close` is such a point,
   where it is the C library's that closes. */
#include "check.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_spinlock_t spin;
static const char *kind;
static int about, taken;

static int is(const char *name) { return strcmp(kind, name) == 0; }

static void take(void) {
    if (is("mutex"))
        CHECK(pthread_mutex_lock(&mutex) == 0);
    else if (is("spin"))
        CHECK(pthread_spin_lock(&spin) == 0);
    else if (is("read"))
        CHECK(pthread_rwlock_rdlock(&rwlock) == 0);
    else
        CHECK(pthread_rwlock_wrlock(&rwlock) == 0);
}

static void give(void) {
    if (is("mutex"))
        CHECK(pthread_mutex_unlock(&mutex) == 0);
    else if (is("spin"))
        CHECK(pthread_spin_unlock(&spin) == 0);
    else
        CHECK(pthread_rwlock_unlock(&rwlock) == 0);
}

static void *patient(void *unused) {
    CHECK(pthread_cancel(pthread_self()) == 0);
    __atomic_store_n(&about, 1, __ATOMIC_RELEASE);
    take();
    taken = 1;
    give();
    pthread_testcancel();
    return unused;
}

int main(int argc, char **argv) {
    kind = argc > 1 ? argv[1] : "mutex";
    CHECK(pthread_spin_init(&spin, PTHREAD_PROCESS_PRIVATE) == 0);
    if (is("read"))
        CHECK(pthread_rwlock_wrlock(&rwlock) == 0);
    else
        take();
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, patient, 0) == 0);
    while (!__atomic_load_n(&about, __ATOMIC_ACQUIRE))
        usleep(100);
    usleep(20000);
    give();
    void *result;
    CHECK(pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED && taken);
    puts("ok");
    return 0;
}
