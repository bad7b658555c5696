/* The cost of the lock calls of <db.h>: scripts/bdb-locks runs it with Berkeley DB and with Latchwork.
 *
 *   bench KIND THREADS ROUNDS
 *
 * Each thread has a locker and does ROUNDS. It prints the nanoseconds that a pair of get and put takes
 * in each of the threads: wall time over the pairs of one thread. For vec it is an eighth of a round.
 *
 *   own      each thread writes an object of its own
 *   shared   all threads read one object
 *   mixed    all threads read one of 16 objects; every 16th writes it, and waits for the readers
 *   vec      lock_vec of 8 objects of the thread's own, and one DB_LOCK_PUT_ALL */
#include <db.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static DB_ENV *env;
static char kind;
static long rounds;
static pthread_barrier_t barrier;
static struct timespec begun[64], ended[64];

static void check(int code, const char *what)
{
    if (code == 0) return;
    fprintf(stderr, "%s: %s\n", what, db_strerror(code));
    exit(1);
}

static void pair(u_int32_t id, DBT *object, db_lockmode_t mode)
{
    DB_LOCK lock;
    check(env->lock_get(env, id, 0, object, mode, &lock), "lock_get");
    check(env->lock_put(env, &lock), "lock_put");
}

static void vec(u_int32_t id, DBT *objects)
{
    DB_LOCKREQ list[9];
    int at;
    memset(list, 0, sizeof list);
    for (at = 0; at < 8; at++) {
        list[at].op = DB_LOCK_GET;
        list[at].mode = DB_LOCK_WRITE;
        list[at].obj = &objects[at];
    }
    list[8].op = DB_LOCK_PUT_ALL;
    check(env->lock_vec(env, id, 0, list, 9, NULL), "lock_vec");
}

static void *work(void *argument)
{
    long number = (long)argument, round;
    char names[16][16];
    DBT objects[16];
    u_int32_t id;
    int at;
    memset(objects, 0, sizeof objects);
    for (at = 0; at < 16; at++) {
        /* Own objects have the number of the thread in their name. */
        int own = kind == 'o' || kind == 'v';
        memset(names[at], 0, sizeof names[at]);
        snprintf(names[at], sizeof names[at], "%c%d.%ld", kind, at, own ? number : 0);
        objects[at].data = names[at];
        objects[at].size = sizeof names[at];
    }
    check(env->lock_id(env, &id), "lock_id");
    pthread_barrier_wait(&barrier);
    clock_gettime(CLOCK_MONOTONIC, &begun[number]);
    for (round = 0; round < rounds; round++) {
        switch (kind) {
        case 'o': pair(id, &objects[0], DB_LOCK_WRITE); break;
        case 's': pair(id, &objects[0], DB_LOCK_READ); break;
        case 'm': {
            long turn = number * 7 + round;
            pair(id, &objects[turn * 5 % 16], turn % 16 ? DB_LOCK_READ : DB_LOCK_WRITE);
            break;
        }
        case 'v': vec(id, objects); break;
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &ended[number]);
    check(env->lock_id_free(env, id), "lock_id_free");
    return NULL;
}

static double seconds(struct timespec of) { return (double)of.tv_sec + (double)of.tv_nsec / 1e9; }

int main(int argc, char **argv)
{
    pthread_t threads[64];
    long count, at;
    double from, to = 0;
    if (argc != 4 || !strchr("osmv", argv[1][0]) || (count = atol(argv[2])) < 1 || count > 64) {
        fprintf(stderr, "usage: bench own|shared|mixed|vec THREADS ROUNDS\n");
        return 2;
    }
    kind = argv[1][0];
    rounds = atol(argv[3]);
    check(db_env_create(&env, 0), "db_env_create");
    check(env->set_lk_detect(env, DB_LOCK_DEFAULT), "set_lk_detect");
    check(env->set_lk_partitions(env, 16), "set_lk_partitions");
    check(env->open(env, ".", DB_CREATE | DB_INIT_LOCK | DB_PRIVATE | DB_THREAD, 0), "open");
    pthread_barrier_init(&barrier, NULL, (unsigned)count);
    for (at = 0; at < count; at++) pthread_create(&threads[at], NULL, work, (void *)at);
    for (at = 0; at < count; at++) pthread_join(threads[at], NULL);
    check(env->close(env, 0), "close");
    /* From the first thread's beginning to the last one's end. */
    from = seconds(begun[0]);
    for (at = 0; at < count; at++) {
        if (seconds(begun[at]) < from) from = seconds(begun[at]);
        if (seconds(ended[at]) > to) to = seconds(ended[at]);
    }
    printf("%.1f\n", (to - from) * 1e9 / (double)rounds / (kind == 'v' ? 8 : 1));
    return 0;
}
