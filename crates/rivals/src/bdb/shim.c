/*
 * Berkeley DB's calls are pointers in a structure of hundreds, which only its header describes.
 * So this calls them, and the crate calls this. Results are Berkeley DB's own, but for
 * OPEN_VERSION.
 */
#include <sys/types.h>
#include <stdint.h>
#include <string.h>
#include <db.h>

#if DB_VERSION_MAJOR != 5 || DB_VERSION_MINOR != 3
#error "these are not the headers of Berkeley DB 5.3"
#endif

#define OPEN_VERSION (-1)
#define HANDLE_BYTES 32

_Static_assert(sizeof(DB_LOCK) <= HANDLE_BYTES, "a handle fits");
_Static_assert(DB_LOCK_DEADLOCK == -30993, "as the crate has it");
_Static_assert(DB_LOCK_NOTGRANTED == -30992, "as the crate has it");

typedef int (*create_fn)(DB_ENV **, uint32_t);
typedef char *(*version_fn)(int *, int *, int *);

struct counts {
	uint64_t requests, waits, deadlocks, region_bytes, locks, partitions;
};

int latchwork_bdb_open(create_fn create, version_fn version, const char *home, uint32_t locks,
    uint32_t lockers, uint32_t objects, DB_ENV **out)
{
	DB_ENV *env;
	uint32_t flags;
	int major, minor, ret;

	(void)version(&major, &minor, NULL);
	if (major != DB_VERSION_MAJOR || minor != DB_VERSION_MINOR)
		return (OPEN_VERSION);
	if ((ret = create(&env, 0)) != 0)
		return (ret);
	flags = DB_CREATE | DB_INIT_LOCK | DB_THREAD;
	if (home == NULL)
		flags |= DB_PRIVATE;
	if ((ret = env->set_lk_max_locks(env, locks)) != 0 ||
	    (ret = env->set_lk_max_lockers(env, lockers)) != 0 ||
	    (ret = env->set_lk_max_objects(env, objects)) != 0 ||
	    (ret = env->open(env, home, flags, 0600)) != 0) {
		(void)env->close(env, 0);
		return (ret);
	}
	*out = env;
	return (0);
}

int latchwork_bdb_close(DB_ENV *env)
{
	return (env->close(env, 0));
}

int latchwork_bdb_detect(DB_ENV *env)
{
	return (env->set_lk_detect(env, DB_LOCK_YOUNGEST));
}

int latchwork_bdb_id(DB_ENV *env, uint32_t *id)
{
	return (env->lock_id(env, id));
}

int latchwork_bdb_id_free(DB_ENV *env, uint32_t id)
{
	return (env->lock_id_free(env, id));
}

int latchwork_bdb_get(DB_ENV *env, uint32_t id, int wait, const void *name, uint32_t length,
    int write, void *handle)
{
	DBT object;

	memset(&object, 0, sizeof(object));
	object.data = (void *)name;
	object.size = length;
	return (env->lock_get(env, id, wait ? 0 : DB_LOCK_NOWAIT, &object,
	    write ? DB_LOCK_WRITE : DB_LOCK_READ, handle));
}

int latchwork_bdb_put(DB_ENV *env, void *handle)
{
	return (env->lock_put(env, handle));
}

int latchwork_bdb_put_all(DB_ENV *env, uint32_t id)
{
	DB_LOCKREQ request;

	memset(&request, 0, sizeof(request));
	request.op = DB_LOCK_PUT_ALL;
	return (env->lock_vec(env, id, 0, &request, 1, NULL));
}

int latchwork_bdb_counts(DB_ENV *env, void (*release)(void *), struct counts *out)
{
	DB_LOCK_STAT *stat;
	int ret;

	if ((ret = env->lock_stat(env, &stat, 0)) != 0)
		return (ret);
	out->requests = stat->st_nrequests;
	out->waits = stat->st_lock_wait;
	out->deadlocks = stat->st_ndeadlocks;
	out->region_bytes = stat->st_regsize;
	out->locks = stat->st_nlocks;
	out->partitions = stat->st_partitions;
	release(stat);
	return (0);
}
