/*
 * Berkeley DB's buffer pool: memp_fget and memp_fput, which are pointers in a structure of its
 * header's.
 */
#include <sys/types.h>
#include <stdint.h>
#include <string.h>
#include <db.h>

#define OPEN_VERSION (-1)

typedef int (*create_fn)(DB_ENV **, uint32_t);

int latchwork_mpool_open(create_fn create, const char *home, const char *file, uint64_t cache,
    uint32_t page, DB_ENV **out_env, DB_MPOOLFILE **out)
{
	DB_ENV *env;
	DB_MPOOLFILE *mpf;
	uint32_t flags;
	int ret;

	if ((ret = create(&env, 0)) != 0)
		return (ret);
	flags = DB_CREATE | DB_INIT_MPOOL | DB_THREAD;
	if (home == NULL)
		flags |= DB_PRIVATE;
	if ((ret = env->set_cachesize(env, (uint32_t)(cache >> 30),
	    (uint32_t)(cache & 0x3fffffff), 1)) != 0 ||
	    (ret = env->open(env, home, flags, 0600)) != 0 ||
	    (ret = env->memp_fcreate(env, &mpf, 0)) != 0) {
		(void)env->close(env, 0);
		return (ret);
	}
	if ((ret = mpf->open(mpf, file, DB_CREATE, 0600, page)) != 0) {
		(void)mpf->close(mpf, 0);
		(void)env->close(env, 0);
		return (ret);
	}
	*out_env = env;
	*out = mpf;
	return (0);
}

int latchwork_mpool_close(DB_ENV *env, DB_MPOOLFILE *mpf)
{
	int first = mpf->close(mpf, 0);
	int second = env->close(env, 0);

	return (first != 0 ? first : second);
}

/* Makes a page whose bytes 16 to 24 are this value. */
int latchwork_mpool_make(DB_MPOOLFILE *mpf, uint32_t number, uint64_t value)
{
	db_pgno_t page = number;
	void *at;
	int ret;

	if ((ret = mpf->get(mpf, &page, NULL, DB_MPOOL_CREATE | DB_MPOOL_DIRTY, &at)) != 0)
		return (ret);
	memcpy((char *)at + 16, &value, sizeof(value));
	return (mpf->put(mpf, at, DB_PRIORITY_UNCHANGED, 0));
}

/* Reads those bytes: get and put. */
int latchwork_mpool_read(DB_MPOOLFILE *mpf, uint32_t number, uint64_t *value)
{
	db_pgno_t page = number;
	void *at;
	int ret;

	if ((ret = mpf->get(mpf, &page, NULL, 0, &at)) != 0)
		return (ret);
	memcpy(value, (char *)at + 16, sizeof(*value));
	return (mpf->put(mpf, at, DB_PRIORITY_UNCHANGED, 0));
}

/* Adds one to them. */
int latchwork_mpool_add(DB_MPOOLFILE *mpf, uint32_t number)
{
	db_pgno_t page = number;
	uint64_t value;
	void *at;
	int ret;

	if ((ret = mpf->get(mpf, &page, NULL, DB_MPOOL_DIRTY, &at)) != 0)
		return (ret);
	memcpy(&value, (char *)at + 16, sizeof(value));
	value++;
	memcpy((char *)at + 16, &value, sizeof(value));
	return (mpf->put(mpf, at, DB_PRIORITY_UNCHANGED, 0));
}
