/* Prints the answers of the lock calls of <db.h>: scripts/bdb-locks runs it with Berkeley DB and with
 * Latchwork and compares. Only what both define is printed: no ids, no offsets, no texts. */
#include <db.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static DB_ENV *env;

static const char *name(int code)
{
    static char other[32];
    switch (code) {
    case 0: return "done";
    case DB_LOCK_NOTGRANTED: return "not granted";
    case DB_LOCK_DEADLOCK: return "deadlock";
    case 22: return "EINVAL";
    }
    snprintf(other, sizeof other, "%d", code);
    return other;
}

static void say(const char *what, int code) { printf("%s: %s\n", what, name(code)); }

static DBT object(const char *text)
{
    DBT of;
    memset(&of, 0, sizeof of);
    of.data = (void *)text;
    of.size = (u_int32_t)strlen(text);
    return of;
}

static u_int32_t locker(void)
{
    u_int32_t id = 0;
    int code = env->lock_id(env, &id);
    if (code != 0) say("lock_id", code), exit(1);
    return id;
}

static int get(u_int32_t id, const char *text, db_lockmode_t mode, u_int32_t flags, DB_LOCK *lock)
{
    DBT of = object(text);
    return env->lock_get(env, id, flags, &of, mode, lock);
}

static int is_free(const char *text, db_lockmode_t mode)
{
    u_int32_t id = locker();
    DB_LOCK lock;
    int code = get(id, text, mode, DB_LOCK_NOWAIT, &lock);
    if (code == 0) env->lock_put(env, &lock);
    env->lock_id_free(env, id);
    return code == 0;
}

static void all(u_int32_t id, db_lockop_t op, const char *text)
{
    DB_LOCKREQ request;
    DBT of = object(text ? text : "");
    memset(&request, 0, sizeof request);
    request.op = op;
    if (text) request.obj = &of;
    say("release", env->lock_vec(env, id, 0, &request, 1, NULL));
}

static void the_modes_conflict(void)
{
    static const db_lockmode_t modes[] = { DB_LOCK_READ, DB_LOCK_WRITE, DB_LOCK_IWRITE, DB_LOCK_IREAD,
                                           DB_LOCK_IWR, DB_LOCK_READ_UNCOMMITTED, DB_LOCK_WWRITE };
    u_int32_t one = locker(), other = locker();
    size_t held, wanted;
    for (held = 0; held < 7; held++) {
        printf("mode %d held:", modes[held]);
        for (wanted = 0; wanted < 7; wanted++) {
            DB_LOCK first, second;
            int code;
            if ((code = get(one, "m", modes[held], 0, &first)) != 0) say("get", code);
            code = get(other, "m", modes[wanted], DB_LOCK_NOWAIT, &second);
            printf(" %d %s;", modes[wanted], name(code));
            if (code == 0) env->lock_put(env, &second);
            env->lock_put(env, &first);
        }
        printf("\n");
    }
    say("free", env->lock_id_free(env, one));
    say("free", env->lock_id_free(env, other));
}

static void locks_are_counted_and_end_once(void)
{
    u_int32_t one = locker(), other = locker();
    DB_LOCK first, again, write, old;
    say("read", get(one, "a", DB_LOCK_READ, 0, &first));
    say("read again", get(one, "a", DB_LOCK_READ, 0, &again));
    say("upgrade", get(one, "a", DB_LOCK_WRITE, DB_LOCK_NOWAIT, &write));
    say("another reads", get(other, "a", DB_LOCK_READ, DB_LOCK_NOWAIT, &old));
    say("freed with locks", env->lock_id_free(env, one));
    old = first;
    say("put", env->lock_put(env, &write));
    say("put", env->lock_put(env, &again));
    printf("free for writing: %d\n", is_free("a", DB_LOCK_WRITE));
    say("put", env->lock_put(env, &first));
    printf("free for writing: %d\n", is_free("a", DB_LOCK_WRITE));
    say("put once more", env->lock_put(env, &old));
    say("read", get(one, "a", DB_LOCK_READ, 0, &first));
    say("another reads", get(other, "a", DB_LOCK_READ, 0, &again));
    say("upgrade over a reader", get(one, "a", DB_LOCK_WRITE, DB_LOCK_NOWAIT, &write));
    say("put", env->lock_put(env, &first));
    say("put", env->lock_put(env, &again));
    say("free", env->lock_id_free(env, one));
    say("free", env->lock_id_free(env, other));
    say("a locker that was freed", get(one, "a", DB_LOCK_READ, 0, &first));
    say("no such locker", get(30000, "a", DB_LOCK_READ, 0, &first));
    say("no such locker is freed", env->lock_id_free(env, 30000));
}

static void batches_end_at_the_first_failure(void)
{
    u_int32_t one = locker(), other = locker();
    DBT a = object("a"), b = object("b"), c = object("c");
    DB_LOCKREQ list[4], *failed = NULL;
    DB_LOCK lock;
    memset(list, 0, sizeof list);
    say("another writes b", get(other, "b", DB_LOCK_WRITE, 0, &lock));
    list[0].op = list[1].op = list[2].op = DB_LOCK_GET;
    list[0].mode = list[1].mode = list[2].mode = DB_LOCK_WRITE;
    list[0].obj = &a, list[1].obj = &b, list[2].obj = &c;
    say("batch", env->lock_vec(env, one, DB_LOCK_NOWAIT, list, 3, &failed));
    printf("failed at %d; a %d, c %d are free\n", (int)(failed - list), is_free("a", DB_LOCK_READ),
           is_free("c", DB_LOCK_READ));
    say("put", env->lock_put(env, &lock));
    list[3].op = DB_LOCK_PUT;
    list[3].lock = list[0].lock;
    say("batch", env->lock_vec(env, one, 0, list + 1, 3, &failed));
    printf("a %d, b %d, c %d are free\n", is_free("a", DB_LOCK_READ), is_free("b", DB_LOCK_READ),
           is_free("c", DB_LOCK_READ));
    say("read d", get(one, "d", DB_LOCK_READ, 0, &lock));
    all(one, DB_LOCK_PUT_READ, NULL);
    printf("b %d, c %d, d %d are free\n", is_free("b", DB_LOCK_READ), is_free("c", DB_LOCK_READ),
           is_free("d", DB_LOCK_WRITE));
    all(one, DB_LOCK_PUT_OBJ, "b");
    printf("b %d, c %d are free\n", is_free("b", DB_LOCK_READ), is_free("c", DB_LOCK_READ));
    say("read e", get(one, "e", DB_LOCK_READ, 0, &lock));
    say("write e", get(one, "e", DB_LOCK_WRITE, 0, &lock));
    all(one, DB_LOCK_PUT_READ, NULL);
    printf("e %d is free\n", is_free("e", DB_LOCK_READ));
    say("put", env->lock_put(env, &lock));
    printf("e %d is free\n", is_free("e", DB_LOCK_WRITE));
    say("put of a lock that was released with its object", env->lock_put(env, &list[1].lock));
    all(one, DB_LOCK_PUT_ALL, NULL);
    printf("c %d is free\n", is_free("c", DB_LOCK_READ));
    all(one, DB_LOCK_PUT_ALL, NULL);
    say("free", env->lock_id_free(env, one));
    say("free", env->lock_id_free(env, other));
}

struct waiting {
    pthread_t thread;
    u_int32_t id;
    const char *name;
    int code;
    DB_LOCK lock;
};

static void *wait_for(void *of)
{
    struct waiting *waiting = of;
    waiting->code = get(waiting->id, waiting->name, DB_LOCK_WRITE, 0, &waiting->lock);
    if (waiting->code == 0) env->lock_put(env, &waiting->lock);
    return NULL;
}

static void a_wait_ends_with_the_lock(void)
{
    struct waiting waiting = { 0 };
    u_int32_t one = locker();
    DB_LOCK lock;
    waiting.id = locker(), waiting.name = "a";
    say("write", get(one, "a", DB_LOCK_WRITE, 0, &lock));
    pthread_create(&waiting.thread, NULL, wait_for, &waiting);
    usleep(100000);
    say("put", env->lock_put(env, &lock));
    pthread_join(waiting.thread, NULL);
    say("the waiter", waiting.code);
    say("free", env->lock_id_free(env, one));
    say("free", env->lock_id_free(env, waiting.id));
}

static void a_deadlock_has_one_victim(void)
{
    struct waiting one = { 0 }, other = { 0 };
    DB_LOCK first, second;
    one.id = locker(), other.id = locker();
    say("write a", get(one.id, "a", DB_LOCK_WRITE, 0, &first));
    say("write b", get(other.id, "b", DB_LOCK_WRITE, 0, &second));
    one.name = "b", other.name = "a";
    pthread_create(&one.thread, NULL, wait_for, &one);
    usleep(100000);
    pthread_create(&other.thread, NULL, wait_for, &other);
    usleep(100000);
    if (one.code == 0 && other.code == 0) {
        int aborted = 0;
        env->lock_detect(env, 0, DB_LOCK_YOUNGEST, &aborted);
    }
    /* The victim releases what it has, as a transaction does. */
    pthread_join(other.thread, NULL);
    say("the younger one", other.code);
    say("put", env->lock_put(env, &second));
    pthread_join(one.thread, NULL);
    say("the older one", one.code);
    say("put", env->lock_put(env, &first));
    say("free", env->lock_id_free(env, one.id));
    say("free", env->lock_id_free(env, other.id));
}

static int wait_is_over;

static void *wait_50_ms(void *of)
{
    struct waiting *waiting = of;
    DBT name = object(waiting->name);
    DB_LOCKREQ request;
    memset(&request, 0, sizeof request);
    request.op = DB_LOCK_GET_TIMEOUT, request.mode = DB_LOCK_WRITE, request.obj = &name;
    request.timeout = 50000;
    waiting->code = env->lock_vec(env, waiting->id, 0, &request, 1, NULL);
    __atomic_store_n(&wait_is_over, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* In Berkeley DB the detector ends waits whose time is over. */
static void a_wait_ends_with_its_time(void)
{
    struct waiting waiting = { 0 };
    u_int32_t one = locker();
    DB_LOCK lock;
    waiting.id = locker(), waiting.name = "a";
    say("write", get(one, "a", DB_LOCK_WRITE, 0, &lock));
    pthread_create(&waiting.thread, NULL, wait_50_ms, &waiting);
    while (!__atomic_load_n(&wait_is_over, __ATOMIC_ACQUIRE)) {
        int aborted, code = env->lock_detect(env, 0, DB_LOCK_EXPIRE, &aborted);
        if (code != 0) say("detect", code);
        usleep(10000);
    }
    pthread_join(waiting.thread, NULL);
    say("within 50 ms", waiting.code);
    say("put", env->lock_put(env, &lock));
    say("free", env->lock_id_free(env, one));
    say("free", env->lock_id_free(env, waiting.id));
}

static void statistics_count(void)
{
    DB_LOCK_STAT *before, *after;
    u_int32_t id = locker();
    DB_LOCK lock;
    say("stat", env->lock_stat(env, &before, 0));
    say("read", get(id, "s", DB_LOCK_READ, 0, &lock));
    say("stat", env->lock_stat(env, &after, 0));
    printf("lockers %d, locks %d more, requests %d more\n", (int)after->st_nlockers,
           (int)(after->st_nlocks - before->st_nlocks),
           (int)(after->st_nrequests - before->st_nrequests));
    free(before), free(after);
    say("put", env->lock_put(env, &lock));
    say("free", env->lock_id_free(env, id));
}

int main(void)
{
    int code = db_env_create(&env, 0);
    if (code == 0) {
        env->set_errfile(env, NULL);
        code = env->set_lk_detect(env, DB_LOCK_YOUNGEST);
    }
    if (code == 0) code = env->open(env, ".", DB_CREATE | DB_INIT_LOCK | DB_PRIVATE | DB_THREAD, 0);
    if (code != 0) return say("open", code), 1;
    the_modes_conflict();
    locks_are_counted_and_end_once();
    batches_end_at_the_first_failure();
    a_wait_ends_with_the_lock();
    a_deadlock_has_one_victim();
    a_wait_ends_with_its_time();
    statistics_count();
    say("close", env->close(env, 0));
    return 0;
}
