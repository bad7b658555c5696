/*
 * Berkeley DB as a transactional store: its calls are pointers in structures that only its header
 * describes, so this calls them, and the crate calls this. Results are Berkeley DB's own, but for
 * OPEN_VERSION.
 */
#include <sys/types.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <db.h>

#if DB_VERSION_MAJOR != 5 || DB_VERSION_MINOR != 3
#error "these are not the headers of Berkeley DB 5.3"
#endif

#define OPEN_VERSION (-1)
#define PAGE 4096
#define LOCKS 100000

_Static_assert(DB_LOCK_DEADLOCK == -30993, "as the crate has it");
_Static_assert(DB_NOTFOUND == -30988, "as the crate has it");
_Static_assert(DB_BUFFER_SMALL == -30999, "as the crate has it");

typedef int (*env_create_fn)(DB_ENV **, uint32_t);
typedef int (*db_create_fn)(DB **, DB_ENV *, uint32_t);
typedef char *(*version_fn)(int *, int *, int *);
typedef void (*each_fn)(void *, const void *, size_t, const void *, size_t);

int latchwork_bdb_store_open(env_create_fn create, version_fn version, const char *home,
    uint64_t cache, int durable, int recover, DB_ENV **out)
{
	DB_ENV *env;
	int major, minor, ret;

	(void)version(&major, &minor, NULL);
	if (major != DB_VERSION_MAJOR || minor != DB_VERSION_MINOR)
		return (OPEN_VERSION);
	if ((ret = create(&env, 0)) != 0)
		return (ret);
	if ((ret = env->set_cachesize(env, (uint32_t)(cache >> 30),
	         (uint32_t)(cache & ((1u << 30) - 1)), 1)) != 0 ||
	    (ret = env->set_lk_max_locks(env, LOCKS)) != 0 ||
	    (ret = env->set_lk_max_lockers(env, LOCKS)) != 0 ||
	    (ret = env->set_lk_max_objects(env, LOCKS)) != 0 ||
	    (ret = env->set_tx_max(env, 1000)) != 0 ||
	    (ret = env->set_lk_detect(env, DB_LOCK_YOUNGEST)) != 0 ||
	    (ret = env->set_lg_bsize(env, 1 << 20)) != 0 ||
	    (ret = env->set_lg_max(env, 64 << 20)) != 0 ||
	    (ret = env->log_set_config(env, DB_LOG_AUTO_REMOVE, 1)) != 0 ||
	    (ret = env->set_flags(env, DB_TXN_NOSYNC, !durable)) != 0 ||
	    (ret = env->open(env, home, DB_CREATE | DB_THREAD | DB_INIT_TXN | DB_INIT_LOCK |
	         DB_INIT_LOG | DB_INIT_MPOOL | (recover ? DB_RECOVER : 0), 0600)) != 0) {
		(void)env->close(env, 0);
		return (ret);
	}
	*out = env;
	return (0);
}

int latchwork_bdb_store_table(db_create_fn create, DB_ENV *env, uint32_t number, int snapshots,
    DB **out)
{
	char name[32];
	DB *db;
	int ret;

	(void)snprintf(name, sizeof(name), "t%u.db", number);
	if ((ret = create(&db, env, 0)) != 0)
		return (ret);
	if ((ret = db->set_pagesize(db, PAGE)) != 0 ||
	    (ret = db->open(db, NULL, name, NULL, DB_BTREE, DB_CREATE | DB_THREAD |
	         DB_AUTO_COMMIT | (snapshots ? DB_MULTIVERSION : 0), 0600)) != 0) {
		(void)db->close(db, 0);
		return (ret);
	}
	*out = db;
	return (0);
}

int latchwork_bdb_store_close_table(DB *db)
{
	return (db->close(db, 0));
}

int latchwork_bdb_store_close(DB_ENV *env)
{
	return (env->close(env, 0));
}

int latchwork_bdb_store_checkpoint(DB_ENV *env)
{
	return (env->txn_checkpoint(env, 0, 0, DB_FORCE));
}

int latchwork_bdb_store_begin(DB_ENV *env, int snapshot, DB_TXN **out)
{
	return (env->txn_begin(env, NULL, out, snapshot ? DB_TXN_SNAPSHOT : 0));
}

int latchwork_bdb_store_end(DB_TXN *txn, int commit)
{
	return (commit ? txn->commit(txn, 0) : txn->abort(txn));
}

int latchwork_bdb_store_get(DB *db, DB_TXN *txn, int update, const void *key, size_t length,
    void *value, size_t room, size_t *got)
{
	DBT k, v;
	int ret;

	memset(&k, 0, sizeof(k));
	memset(&v, 0, sizeof(v));
	k.data = (void *)key;
	k.size = (uint32_t)length;
	v.data = value;
	v.ulen = (uint32_t)room;
	v.flags = DB_DBT_USERMEM;
	ret = db->get(db, txn, &k, &v, update ? DB_RMW : 0);
	*got = v.size;
	return (ret);
}

int latchwork_bdb_store_put(DB *db, DB_TXN *txn, const void *key, size_t length,
    const void *value, size_t size)
{
	DBT k, v;

	memset(&k, 0, sizeof(k));
	memset(&v, 0, sizeof(v));
	k.data = (void *)key;
	k.size = (uint32_t)length;
	v.data = (void *)value;
	v.size = (uint32_t)size;
	return (db->put(db, txn, &k, &v, 0));
}

/* Records are copied into "room" by many at a time, as its manual has it for scans. */
int latchwork_bdb_store_scan(DB *db, DB_TXN *txn, const void *from, size_t length, size_t limit,
    void *room, size_t size, each_fn each, void *context, size_t *count)
{
	DBC *cursor;
	DBT k, v;
	char found[2048];
	int end, ret;
	uint32_t flags;

	*count = 0;
	if (length > sizeof(found))
		return (DB_BUFFER_SMALL);
	if ((ret = db->cursor(db, txn, &cursor, DB_CURSOR_BULK)) != 0)
		return (ret);
	memset(&k, 0, sizeof(k));
	memset(&v, 0, sizeof(v));
	memcpy(found, from, length);
	k.data = found;
	k.size = (uint32_t)length;
	k.ulen = sizeof(found);
	k.flags = DB_DBT_USERMEM;
	v.data = room;
	v.ulen = (uint32_t)size;
	v.flags = DB_DBT_USERMEM;
	for (flags = DB_SET_RANGE; *count < limit; flags = DB_NEXT) {
		void *at, *key, *value;
		size_t key_size, value_size;

		if ((ret = cursor->get(cursor, &k, &v, flags | DB_MULTIPLE_KEY)) != 0)
			break;
		DB_MULTIPLE_INIT(at, &v);
		while (*count < limit) {
			DB_MULTIPLE_KEY_NEXT(at, &v, key, key_size, value, value_size);
			if (at == NULL)
				break;
			each(context, key, key_size, value, value_size);
			++*count;
		}
	}
	end = cursor->close(cursor);
	return (ret == DB_NOTFOUND || ret == 0 ? end : ret);
}
