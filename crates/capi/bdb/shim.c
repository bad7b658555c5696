/* The lock calls of Berkeley DB 5.3 over Latchwork's lock manager: for tests and benchmarks.
 *
 * A program that is written against <db.h> and uses locks only runs unmodified with this in place of
 * libdb: linked, or as the same binary by LD_PRELOAD. See README.md for what differs.
 *
 *   locker   an owner of the lock manager: an index into a table of two levels, so that a locker is
 *            found without a lock
 *   DB_LOCK  off: the locker; ndx: a row of the locker's table of locks; gen: the generation of the
 *            row, so that a lock that was released is recognised
 *
 * As in Berkeley DB, one thread uses a locker at a time. */
#include <db.h>
#include <latchwork.h>

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODES 9
#define CHUNK 1024
#define CHUNKS 32
#define NAME_INLINE 40

/* A lock that a locker holds. */
struct held {
    u_int32_t gen;
    u_int32_t next_free;
    db_lockmode_t mode;
    u_int32_t len; /* 0: the row is free */
    char *name;
    char short_name[NAME_INLINE];
};

struct locker {
    lw_owner *owner;
    struct held *rows;
    u_int32_t used, room, first_free, held_count;
    /* Read by lock_stat while the locker's thread counts. */
    uintmax_t requests, releases, waits, refusals, deadlocks, timeouts;
};

#define NO_ROW UINT32_MAX
#define COUNT(counter) \
    __atomic_store_n(&(counter), __atomic_load_n(&(counter), __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED)

struct shim {
    DB_ENV env; /* first: a DB_ENV pointer is a pointer to this */
    lw_locks *locks;
    pthread_mutex_t mutex; /* for creating and freeing lockers */
    struct locker **chunks[CHUNKS];
    u_int32_t lockers, max_lockers, free_count, *free_ids;
    uint64_t timeout_ms; /* UINT64_MAX is none */
    /* Of lockers that were freed. */
    struct locker past;
    FILE *errfile;
    const char *errpfx;
};

static struct shim *of(DB_ENV *env) { return (struct shim *)env; }

static void complain(const struct shim *shim, const char *text)
{
    if (shim->errfile)
        fprintf(shim->errfile, "%s%s%s\n", shim->errpfx ? shim->errpfx : "",
                shim->errpfx ? ": " : "", text);
}

/* Berkeley DB's code for a code of the lock manager. */
static int answer(struct shim *shim, int code, lw_error *error)
{
    if (code < 0 && error) complain(shim, lw_error_message(error));
    lw_error_free(error);
    switch (code) {
    case LW_OK: return 0;
    case LW_TIMEOUT:
    case LW_NOT_GRANTED: return DB_LOCK_NOTGRANTED;
    case LW_CONFLICT:
    case LW_KILLED: return DB_LOCK_DEADLOCK;
    case LW_THREADS:
    case LW_LOCKS_FULL:
    case LW_NO_MEMORY: return ENOMEM;
    case LW_NO_SPACE: return ENOSPC;
    case LW_PERMISSION: return EACCES;
    case LW_FORKED:
    case LW_DAMAGED:
    case LW_PANIC: return DB_RUNRECOVERY;
    default: return EINVAL;
    }
}

/* ---- Lockers ---- */

static struct locker *find(struct shim *shim, u_int32_t id)
{
    struct locker **chunk;
    u_int32_t at = id - 1;
    if (id == 0 || at >= CHUNK * CHUNKS) return NULL;
    /* Acquire: with the Release of lock_id, so that the locker is whole. */
    chunk = __atomic_load_n(&shim->chunks[at / CHUNK], __ATOMIC_ACQUIRE);
    return chunk ? __atomic_load_n(&chunk[at % CHUNK], __ATOMIC_ACQUIRE) : NULL;
}

static int lock_id(DB_ENV *env, u_int32_t *id)
{
    struct shim *shim = of(env);
    lw_error *error = NULL;
    struct locker *locker;
    struct locker **chunk;
    u_int32_t at;
    int code;
    if (!shim->locks || !id) return EINVAL;
    if (!(locker = calloc(1, sizeof *locker))) return ENOMEM;
    locker->first_free = NO_ROW;
    code = lw_owner_new(shim->locks, NULL, &locker->owner, &error);
    if (code != LW_OK) {
        free(locker);
        return answer(shim, code, error);
    }
    pthread_mutex_lock(&shim->mutex);
    at = shim->free_count ? shim->free_ids[--shim->free_count] : shim->lockers;
    if (at >= CHUNK * CHUNKS) {
        pthread_mutex_unlock(&shim->mutex);
        lw_owner_free(locker->owner);
        free(locker);
        return ENOMEM;
    }
    if (at == shim->lockers) shim->lockers++;
    if (!(chunk = shim->chunks[at / CHUNK])) {
        chunk = calloc(CHUNK, sizeof *chunk);
        if (!chunk) abort();
        __atomic_store_n(&shim->chunks[at / CHUNK], chunk, __ATOMIC_RELEASE);
    }
    /* Release: with the Acquire of find. */
    __atomic_store_n(&chunk[at % CHUNK], locker, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&shim->mutex);
    *id = at + 1;
    return 0;
}

static void destroy(struct locker *locker)
{
    u_int32_t row;
    for (row = 0; row < locker->used; row++)
        if (locker->rows[row].name != locker->rows[row].short_name) free(locker->rows[row].name);
    lw_owner_free(locker->owner);
    free(locker->rows);
    free(locker);
}

static void add_counts(struct locker *to, const struct locker *from)
{
    to->requests += __atomic_load_n(&from->requests, __ATOMIC_RELAXED);
    to->releases += __atomic_load_n(&from->releases, __ATOMIC_RELAXED);
    to->waits += __atomic_load_n(&from->waits, __ATOMIC_RELAXED);
    to->refusals += __atomic_load_n(&from->refusals, __ATOMIC_RELAXED);
    to->deadlocks += __atomic_load_n(&from->deadlocks, __ATOMIC_RELAXED);
    to->timeouts += __atomic_load_n(&from->timeouts, __ATOMIC_RELAXED);
}

static int lock_id_free(DB_ENV *env, u_int32_t id)
{
    struct shim *shim = of(env);
    struct locker *locker = find(shim, id);
    if (!locker) return EINVAL;
    if (locker->held_count) {
        complain(shim, "Locker still has locks");
        return EINVAL;
    }
    pthread_mutex_lock(&shim->mutex);
    if (!shim->free_ids && !(shim->free_ids = calloc(CHUNK * CHUNKS, sizeof *shim->free_ids))) {
        pthread_mutex_unlock(&shim->mutex);
        return ENOMEM;
    }
    shim->free_ids[shim->free_count++] = id - 1;
    __atomic_store_n(&shim->chunks[(id - 1) / CHUNK][(id - 1) % CHUNK], NULL, __ATOMIC_RELEASE);
    add_counts(&shim->past, locker);
    pthread_mutex_unlock(&shim->mutex);
    destroy(locker);
    return 0;
}

/* ---- Rows: the locks of a locker ---- */

static struct held *new_row(struct locker *locker, const DBT *obj)
{
    struct held *row;
    if (locker->first_free == NO_ROW) {
        if (locker->used == locker->room) {
            u_int32_t room = locker->room ? 2 * locker->room : 16, at;
            struct held *rows = malloc(room * sizeof *rows);
            if (!rows) return NULL;
            if (locker->used) memcpy(rows, locker->rows, locker->used * sizeof *rows);
            for (at = 0; at < locker->used; at++)
                if (locker->rows[at].name == locker->rows[at].short_name)
                    rows[at].name = rows[at].short_name;
            free(locker->rows);
            locker->rows = rows;
            locker->room = room;
        }
        row = &locker->rows[locker->used++];
        row->gen = 1;
        row->len = 0;
        row->name = row->short_name;
        row->next_free = NO_ROW;
    } else {
        row = &locker->rows[locker->first_free];
    }
    if (obj->size > NAME_INLINE) {
        char *name = malloc(obj->size);
        if (!name) {
            /* A row that was new stays as a free one. */
            if (locker->first_free == NO_ROW) locker->first_free = (u_int32_t)(row - locker->rows);
            return NULL;
        }
        row->name = name;
    }
    memcpy(row->name, obj->data, obj->size);
    row->len = obj->size;
    locker->first_free = row->next_free;
    locker->held_count++;
    return row;
}

static void free_row(struct locker *locker, struct held *row)
{
    if (row->name != row->short_name) free(row->name);
    row->name = row->short_name;
    row->len = 0;
    row->gen++;
    row->next_free = locker->first_free;
    locker->first_free = (u_int32_t)(row - locker->rows);
    locker->held_count--;
    COUNT(locker->releases);
}

/* Frees the rows that a function chooses. */
static void free_rows(struct locker *locker, int (*chooses)(const struct held *, const DBT *), const DBT *obj)
{
    u_int32_t at;
    for (at = 0; at < locker->used; at++)
        if (locker->rows[at].len && chooses(&locker->rows[at], obj)) free_row(locker, &locker->rows[at]);
}

static int all_rows(const struct held *row, const DBT *obj) { return (void)row, (void)obj, 1; }
static int of_object(const struct held *row, const DBT *obj)
{
    return row->len == obj->size && !memcmp(row->name, obj->data, obj->size);
}

/* ---- Locks ---- */

static int get(struct shim *shim, u_int32_t id, u_int32_t flags, const DBT *obj, db_lockmode_t mode,
               uint64_t timeout_ms, DB_LOCK *lock)
{
    struct locker *locker = find(shim, id);
    lw_error *error = NULL;
    struct held *row;
    int code;
    if (!locker || !obj || !obj->data || !obj->size || !lock || (flags & ~(u_int32_t)DB_LOCK_NOWAIT))
        return EINVAL;
    if ((int)mode <= DB_LOCK_NG || (int)mode >= MODES) return EINVAL;
    /* A row first: a lock that was granted must be found again. */
    if (!(row = new_row(locker, obj))) return ENOMEM;
    row->mode = mode;
    COUNT(locker->requests);
    code = lw_owner_try_lock(locker->owner, obj->data, obj->size, (int)mode, &error);
    if (code == LW_NOT_GRANTED && !(flags & DB_LOCK_NOWAIT)) {
        COUNT(locker->waits);
        code = lw_owner_lock_timeout(locker->owner, obj->data, obj->size, (int)mode, timeout_ms, &error);
    } else if (code == LW_NOT_GRANTED) {
        COUNT(locker->refusals);
    }
    if (code != LW_OK) {
        if (code == LW_CONFLICT || code == LW_KILLED) COUNT(locker->deadlocks);
        if (code == LW_TIMEOUT) COUNT(locker->timeouts);
        free_row(locker, row);
        __atomic_store_n(&locker->releases, locker->releases - 1, __ATOMIC_RELAXED);
        return answer(shim, code, error);
    }
    lock->off = id;
    lock->ndx = (u_int32_t)(row - locker->rows);
    lock->gen = row->gen;
    lock->mode = mode;
    return 0;
}

static int put(struct shim *shim, DB_LOCK *lock)
{
    struct locker *locker = lock ? find(shim, (u_int32_t)lock->off) : NULL;
    lw_error *error = NULL;
    struct held *row;
    int code;
    if (!locker || lock->ndx >= locker->used) return EINVAL;
    row = &locker->rows[lock->ndx];
    if (!row->len || row->gen != lock->gen) {
        complain(shim, "DB_ENV->lock_put: Lock is no longer valid");
        return EINVAL;
    }
    code = lw_owner_unlock(locker->owner, row->name, row->len, &error);
    if (code != LW_OK) return answer(shim, code, error);
    free_row(locker, row);
    lock->off = 0;
    return 0;
}

static int lock_get(DB_ENV *env, u_int32_t id, u_int32_t flags, DBT *obj, db_lockmode_t mode,
                    DB_LOCK *lock)
{
    return get(of(env), id, flags, obj, mode, of(env)->timeout_ms, lock);
}

static int lock_put(DB_ENV *env, DB_LOCK *lock) { return put(of(env), lock); }

/* Releases several locks of a locker. */
static int release(struct shim *shim, u_int32_t id, uint32_t kind, const DBT *obj,
                   int (*chooses)(const struct held *, const DBT *))
{
    struct locker *locker = find(shim, id);
    lw_error *error = NULL;
    lw_op op = { kind, 0, NULL, 0, 0 };
    int code;
    if (!locker || (kind == LW_OP_RELEASE_NAME && (!obj || !obj->size))) return EINVAL;
    if (obj) op.name = obj->data, op.name_len = obj->size;
    code = lw_owner_batch(locker->owner, &op, 1, NULL, &error);
    if (code == LW_OK) free_rows(locker, chooses, obj);
    /* Berkeley DB does not mind. */
    if (code == LW_NOT_HELD) lw_error_free(error), error = NULL, code = LW_OK;
    return answer(shim, code, error);
}

/* Releases the read locks of a locker one by one: where it also writes, the lock stays for that. */
static int release_reads(struct shim *shim, u_int32_t id)
{
    struct locker *locker = find(shim, id);
    u_int32_t at;
    if (!locker) return EINVAL;
    for (at = 0; at < locker->used; at++) {
        struct held *row = &locker->rows[at];
        lw_error *error = NULL;
        int code;
        if (!row->len || (row->mode != DB_LOCK_READ && row->mode != DB_LOCK_READ_UNCOMMITTED)) continue;
        code = lw_owner_unlock(locker->owner, row->name, row->len, &error);
        if (code != LW_OK) return answer(shim, code, error);
        free_row(locker, row);
    }
    return 0;
}

/* Microseconds, which a lock manager of milliseconds rounds up. */
static uint64_t ms_of(db_timeout_t us) { return us ? ((uint64_t)us + 999) / 1000 : UINT64_MAX; }

static int lock_vec(DB_ENV *env, u_int32_t id, u_int32_t flags, DB_LOCKREQ list[], int count,
                    DB_LOCKREQ **failed)
{
    struct shim *shim = of(env);
    int at, code = 0;
    for (at = 0; at < count && code == 0; at++) {
        DB_LOCKREQ *op = &list[at];
        switch (op->op) {
        case DB_LOCK_GET:
            code = get(shim, id, flags, op->obj, op->mode, shim->timeout_ms, &op->lock);
            break;
        case DB_LOCK_GET_TIMEOUT:
            code = get(shim, id, flags, op->obj, op->mode, ms_of(op->timeout), &op->lock);
            break;
        case DB_LOCK_PUT: code = put(shim, &op->lock); break;
        case DB_LOCK_PUT_ALL: code = release(shim, id, LW_OP_RELEASE_ALL, NULL, all_rows); break;
        case DB_LOCK_PUT_READ: code = release_reads(shim, id); break;
        case DB_LOCK_PUT_OBJ: code = release(shim, id, LW_OP_RELEASE_NAME, op->obj, of_object); break;
        default: code = EINVAL;
        }
        if (code != 0 && failed) *failed = op;
    }
    return code;
}

static int is_policy(u_int32_t policy)
{
    return policy == DB_LOCK_DEFAULT || policy == DB_LOCK_RANDOM || policy == DB_LOCK_YOUNGEST;
}

static int lock_detect(DB_ENV *env, u_int32_t flags, u_int32_t policy, int *aborted)
{
    struct shim *shim = of(env);
    lw_error *error = NULL;
    uint64_t broken = 0;
    int code;
    if (flags) return EINVAL;
    if (aborted) *aborted = 0;
    /* Waits end with their time by themselves. */
    if (policy == DB_LOCK_EXPIRE) return 0;
    if (!is_policy(policy)) return EINVAL;
    code = lw_locks_detect(shim->locks, &broken, &error);
    if (aborted) *aborted = (int)broken;
    return answer(shim, code, error);
}

/* ---- Statistics ---- */

static int count_lock(void *context, const lw_lock *lock)
{
    if (lock->held >= 0) ++*(u_int32_t *)context;
    return 0;
}

static int lock_stat(DB_ENV *env, DB_LOCK_STAT **to, u_int32_t flags)
{
    struct shim *shim = of(env);
    u_int32_t locks = 0;
    struct locker sum = { 0 };
    lw_error *error = NULL;
    DB_LOCK_STAT *stat;
    u_int32_t id;
    int code;
    if (!shim->locks || (flags & ~(u_int32_t)DB_STAT_CLEAR)) return EINVAL;
    code = lw_locks_list(shim->locks, count_lock, &locks, &error);
    if (code != LW_OK) return answer(shim, code, error);
    if (!(stat = calloc(1, sizeof *stat))) return ENOMEM;
    pthread_mutex_lock(&shim->mutex);
    add_counts(&sum, &shim->past);
    for (id = 1; id <= shim->lockers; id++) {
        struct locker *locker = find(shim, id);
        if (!locker) continue;
        stat->st_nlockers++;
        add_counts(&sum, locker);
    }
    stat->st_id = shim->lockers;
    pthread_mutex_unlock(&shim->mutex);
    stat->st_nmodes = MODES;
    stat->st_nlocks = locks;
    stat->st_nrequests = sum.requests;
    stat->st_nreleases = sum.releases;
    stat->st_lock_wait = sum.waits;
    stat->st_lock_nowait = sum.refusals;
    stat->st_ndeadlocks = sum.deadlocks;
    stat->st_nlocktimeouts = sum.timeouts;
    *to = stat;
    return 0;
}

/* ---- The environment ---- */

static int env_open(DB_ENV *env, const char *home, u_int32_t flags, int mode)
{
    struct shim *shim = of(env);
    lw_locks_options options = LW_LOCKS_OPTIONS_INIT;
    lw_error *error = NULL;
    char *path = NULL;
    int code;
    (void)mode;
    if (shim->locks || !(flags & DB_INIT_LOCK) ||
        (flags & (DB_INIT_CDB | DB_INIT_LOG | DB_INIT_REP | DB_INIT_TXN)))
        return EINVAL;
    options.modes = LW_MODES_BERKELEY;
    /* Address space, which valgrind has less of than the default. */
    options.limit = UINT64_C(1) << 32;
    if (shim->max_lockers > 2048) options.threads = shim->max_lockers < 32752 ? shim->max_lockers : 32752;
    if (!(flags & DB_PRIVATE) && home) {
        size_t room = strlen(home) + sizeof "/__latchwork.locks";
        if (!(path = malloc(room))) return ENOMEM;
        snprintf(path, room, "%s/__latchwork.locks", home);
    }
    code = lw_locks_open(path, &options, &shim->locks, &error);
    free(path);
    return answer(shim, code, error);
}

static int env_close(DB_ENV *env, u_int32_t flags)
{
    struct shim *shim = of(env);
    u_int32_t id;
    (void)flags;
    for (id = 1; id <= shim->lockers; id++) {
        struct locker *locker = find(shim, id);
        if (locker) destroy(locker);
    }
    for (id = 0; id < CHUNKS; id++) free(shim->chunks[id]);
    free(shim->free_ids);
    lw_locks_close(shim->locks);
    pthread_mutex_destroy(&shim->mutex);
    free(shim);
    return 0;
}

static int set_timeout(DB_ENV *env, db_timeout_t timeout, u_int32_t which)
{
    if (which != DB_SET_LOCK_TIMEOUT) return EINVAL;
    of(env)->timeout_ms = ms_of(timeout);
    return 0;
}

static int set_flags(DB_ENV *env, u_int32_t flags, int on)
{
    /* A wait whose time is over returns DB_LOCK_NOTGRANTED from the lock calls with it or without. */
    return (void)env, (void)on, flags & ~(u_int32_t)(DB_TIME_NOTGRANTED | DB_NOPANIC) ? EINVAL : 0;
}

static int set_lk_detect(DB_ENV *env, u_int32_t policy)
{
    return (void)env, is_policy(policy) ? 0 : EINVAL;
}

static int set_lk_max_lockers(DB_ENV *env, u_int32_t most)
{
    of(env)->max_lockers = most;
    return 0;
}

/* Sizes that the lock manager does not need. */
static int set_nothing(DB_ENV *env, u_int32_t number) { return (void)env, (void)number, 0; }
static int set_cachesize(DB_ENV *env, u_int32_t gigabytes, u_int32_t bytes, int caches)
{
    return (void)env, (void)gigabytes, (void)bytes, (void)caches, 0;
}

static void set_errfile(DB_ENV *env, FILE *file) { of(env)->errfile = file; }
static void set_errpfx(DB_ENV *env, const char *prefix) { of(env)->errpfx = prefix; }

static void err(const DB_ENV *env, int error, const char *format, ...)
{
    const struct shim *shim = (const struct shim *)env;
    FILE *to = shim->errfile ? shim->errfile : stderr;
    va_list arguments;
    va_start(arguments, format);
    if (shim->errpfx) fprintf(to, "%s: ", shim->errpfx);
    vfprintf(to, format, arguments);
    fprintf(to, ": %s\n", db_strerror(error));
    va_end(arguments);
}

int db_env_create(DB_ENV **env, u_int32_t flags)
{
    struct shim *shim;
    if (flags || !env || !(shim = calloc(1, sizeof *shim))) return flags || !env ? EINVAL : ENOMEM;
    pthread_mutex_init(&shim->mutex, NULL);
    shim->timeout_ms = UINT64_MAX;
    shim->env.close = env_close;
    shim->env.err = err;
    shim->env.lock_detect = lock_detect;
    shim->env.lock_get = lock_get;
    shim->env.lock_id = lock_id;
    shim->env.lock_id_free = lock_id_free;
    shim->env.lock_put = lock_put;
    shim->env.lock_stat = lock_stat;
    shim->env.lock_vec = lock_vec;
    shim->env.open = env_open;
    shim->env.set_cachesize = set_cachesize;
    shim->env.set_errfile = set_errfile;
    shim->env.set_errpfx = set_errpfx;
    shim->env.set_flags = set_flags;
    shim->env.set_lk_detect = set_lk_detect;
    shim->env.set_lk_max_lockers = set_lk_max_lockers;
    shim->env.set_lk_max_locks = set_nothing;
    shim->env.set_lk_max_objects = set_nothing;
    shim->env.set_lk_partitions = set_nothing;
    shim->env.set_lk_tablesize = set_nothing;
    shim->env.set_timeout = set_timeout;
    *env = &shim->env;
    return 0;
}

char *db_strerror(int error)
{
    switch (error) {
    case 0: return "Successful return: 0";
    case DB_LOCK_DEADLOCK: return "DB_LOCK_DEADLOCK: Locker killed to resolve a deadlock";
    case DB_LOCK_NOTGRANTED: return "DB_LOCK_NOTGRANTED: Lock not granted";
    case DB_RUNRECOVERY: return "DB_RUNRECOVERY: Fatal error, run database recovery";
    default: return strerror(error);
    }
}

char *db_version(int *major, int *minor, int *patch)
{
    if (major) *major = DB_VERSION_MAJOR;
    if (minor) *minor = DB_VERSION_MINOR;
    if (patch) *patch = DB_VERSION_PATCH;
    return "Latchwork's lock manager behind the lock calls of " DB_VERSION_STRING;
}
