/* A mutex in memory that its last user unmaps right after it has unlocked: legal, and it was
   glibc's bug 13690 for years. A thread that accesses the mutex after releasing it dies here. */
#include "check.h"

struct object {
    pthread_mutex_t mutex;
    pthread_rwlock_t lock;
    int references;
};

static void *drop_it(void *argument) {
    struct object *object = argument;
    pthread_mutex_lock(&object->mutex);
    int left = --object->references;
    pthread_mutex_unlock(&object->mutex);
    if (left == 0)
        munmap(object, 4096);
    return 0;
}
static void *drop_rw(void *argument) {
    struct object *object = argument;
    pthread_rwlock_wrlock(&object->lock);
    int left = --object->references;
    pthread_rwlock_unlock(&object->lock);
    if (left == 0)
        munmap(object, 4096);
    return 0;
}

enum { THREADS = 4 };
static struct object *volatile current;
static pthread_barrier_t barrier;
static int rounds;
static void *crew(void *unused) {
    (void)unused;
    for (int round = 0; round < rounds; round++) {
        pthread_barrier_wait(&barrier);
        if (round % 2)
            drop_it(current);
        else
            drop_rw(current);
        pthread_barrier_wait(&barrier);
    }
    return 0;
}

int main(int argc, char **argv) {
    rounds = argc > 1 ? atoi(argv[1]) : 4000;
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, 0, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], 0, crew, 0) == 0);
    for (int round = 0; round < rounds; round++) {
        struct object *object =
            mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(object != MAP_FAILED);
        object->references = THREADS;
        current = object;
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], 0);
    puts("ok");
    return 0;
}
