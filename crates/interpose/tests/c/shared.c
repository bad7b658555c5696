/* Process-shared, robust and priority-inheriting objects, with a process that has no library. */
#include "check.h"
#include <fcntl.h>

struct room {
    pthread_mutex_t mutex, robust, inherit;
    pthread_cond_t cond;
    pthread_rwlock_t lock;
    pthread_spinlock_t spin;
    long count, turn;
};

static void work(struct room *room, int me) {
    for (int i = 0; i < 3000; i++) {
        pthread_mutex_t *mutex = i % 2 ? &room->mutex : &room->inherit;
        CHECK(pthread_mutex_lock(&room->mutex) == 0);
        if (mutex != &room->mutex)
            CHECK(pthread_mutex_lock(mutex) == 0);
        room->count++;
        if (mutex != &room->mutex)
            CHECK(pthread_mutex_unlock(mutex) == 0);
        CHECK(pthread_mutex_unlock(&room->mutex) == 0);
        CHECK((i % 3 ? pthread_rwlock_rdlock : pthread_rwlock_wrlock)(&room->lock) == 0);
        CHECK(pthread_rwlock_unlock(&room->lock) == 0);
        CHECK(pthread_spin_lock(&room->spin) == 0);
        CHECK(pthread_spin_unlock(&room->spin) == 0);
    }
    for (int i = 0; i < 200; i++) {
        CHECK(pthread_mutex_lock(&room->mutex) == 0);
        while (room->turn % 2 != me)
            CHECK(pthread_cond_wait(&room->cond, &room->mutex) == 0);
        room->turn++;
        CHECK(pthread_cond_signal(&room->cond) == 0);
        CHECK(pthread_mutex_unlock(&room->mutex) == 0);
    }
}

int main(int argc, char **argv) {
    alarm(60);
    if (argc > 1) {
        int fd = atoi(argv[1]);
        struct room *room = mmap(0, sizeof *room, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(getenv("LD_PRELOAD") == NULL);
        work(room, 1);
        CHECK(pthread_mutex_lock(&room->robust) == 0);
        _exit(0); /* and dies with it */
    }
    int fd = memfd_create("room", 0);
    CHECK(ftruncate(fd, sizeof(struct room)) == 0);
    struct room *room = mmap(0, sizeof *room, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    pthread_mutexattr_t attr;
    pthread_condattr_t cattr;
    pthread_rwlockattr_t rattr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    CHECK(pthread_mutex_init(&room->mutex, &attr) == 0);
    pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_INHERIT);
    CHECK(pthread_mutex_init(&room->inherit, &attr) == 0);
    pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_NONE);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    CHECK(pthread_mutex_init(&room->robust, &attr) == 0);
    pthread_condattr_init(&cattr);
    pthread_condattr_setpshared(&cattr, PTHREAD_PROCESS_SHARED);
    CHECK(pthread_cond_init(&room->cond, &cattr) == 0);
    pthread_rwlockattr_init(&rattr);
    pthread_rwlockattr_setpshared(&rattr, PTHREAD_PROCESS_SHARED);
    CHECK(pthread_rwlock_init(&room->lock, &rattr) == 0);
    CHECK(pthread_spin_init(&room->spin, PTHREAD_PROCESS_SHARED) == 0);
    char number[16];
    snprintf(number, sizeof number, "%d", fd);
    pid_t process = fork();
    if (process == 0) {
        unsetenv("LD_PRELOAD");
        execl("/proc/self/exe", argv[0], number, NULL);
        _exit(9);
    }
    work(room, 0);
    int status;
    CHECK(waitpid(process, &status, 0) == process && status == 0);
    CHECK(room->count == 6000);
    IS(pthread_mutex_lock(&room->robust), EOWNERDEAD);
    IS(pthread_mutex_consistent(&room->robust), 0);
    IS(pthread_mutex_unlock(&room->robust), 0);
    IS(pthread_mutex_trylock(&room->robust), 0);
    IS(pthread_mutex_unlock(&room->robust), 0);
    puts("ok");
    return 0;
}
