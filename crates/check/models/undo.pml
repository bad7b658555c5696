/*
 * The rollback of a dead thread's transaction, for Spin.
 *
 * Modelled: crates/store/src/files/undo.rs (the part of a sweep), records.rs
 * (the contents of a record that undoes), prepare.rs, decide.rs, shared.rs
 * (undo_from), restore_transactions.rs (the state of a slot after a crash of
 * the machine), crates/log/src/repair.rs (forget), and from crates/region how a
 * slot is claimed, retained and freed.
 *
 *   owner      locks two keys; logs and makes three writes, two of them of the
 *              first key; and then commits, or undoes them, or prepares, or
 *              dies at any step.  Its locks are released at the end of a commit
 *              or rollback; if it is prepared, its slot keeps the locks.
 *   undo       from the slot's last record: log a record that undoes it and
 *              names the next one to undo; restore the key's earlier value.  In
 *              a rollback of the thread's own slot such a record is the slot's
 *              last; in another's it is not, and a word of the slot has the
 *              progress.  Then an END record, and the slot is forgotten.
 *   sweeper    claims the dead slot; retains a prepared one again; if the slot
 *              has a last record, undoes from where another sweeper stopped;
 *              then releases the locks and frees the slot.
 *   decider    finds the prepared slot; claims it; checks again that it is
 *              prepared; logs the commit, or undoes; releases the locks; frees
 *              it.
 *   other      waits for the locks, takes them, writes the keys, releases them.
 *   recycler   discards the log before the slot's first record.
 *
 * A thread may die between any two steps, DEATHS times in a run.
 *
 * Not modelled.  Memory is sequentially consistent.  An append is one step:
 * log.pml has its steps.  A record and the change of its key are two steps; if
 * a thread dies between them, the next thread rebuilds the page.  The turn
 * between a transaction's own thread and a thread that finds it too old is in
 * crates/check/tests/store_loom.  Undoing does not fail.
 *
 * Properties.
 *   (a) when the locks are free, both keys have the values from before the
 *       transaction, or both have its values, as it ended; and after that no
 *       thread changes them for it (assert in undo and in other).
 *   (b) locks are released only when the log has the transaction's end:
 *       recovery from the log at that moment (logged[]) finds none open.
 *   (c) at most one decider succeeds, none reports a result that did not
 *       happen, and only deciders end a prepared transaction.
 *   (d) the records to undo are still in the log: no discarded record is read.
 *   (e) no thread is stuck: in the end the slot is free, or retained if the
 *       transaction is prepared.
 *
 * Earlier forms of the code are mutants.  FIRST_FIRST: forget cleared the
 * slot's first record, and then its last; a thread that died between the two
 * left an ended transaction with a last record, unknown to the recycler.  Now
 * the last one is cleared first, and the sweep clears the rest (FORGETS_NOT is
 * without that).  END_UNCHAINED: an END record was not searched for; a decider
 * that rolled back a transaction without writes, and died after its END record,
 * left a transaction that had ended in the log and that the sweep found
 * prepared.  In the model the END of a slot's own thread is its last record; in
 * the code it is not in the chain, and the check whether a transaction is
 * prepared reads the slot's newest record.
 *
 * Compile-time numbers: NS sweepers, ND deciders, NO others, DEATHS, RUNS of
 * the recycler, WRITES (0 to 3).  Mutants: see the script "run".
 */

#ifndef NS
#define NS 2
#endif
#ifndef ND
#define ND 0
#endif
#ifndef NO
#define NO 1
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef RUNS
#define RUNS 0
#endif
#ifndef WRITES
#define WRITES 3
#endif

#if WRITES > 1
#define WROTE0	2
#else
#define WROTE0	WRITES
#endif
#if WRITES > 2
#define WROTE1	1
#else
#define WROTE1	0
#endif

#ifdef TENANT
#define NT	1
#else
#define NT	0
#endif

#define OWNER	1
#define ALL	(1 + NS + ND + NO + NT)
#define MAXL	30

/* kinds of records */
#define CHANGE	1
#define CLR	2
#define PREPARE	3
#define COMMIT	4
#define END	5

/* its result */
#define OPEN	0
#define PREPARED	1
#define COMMITTED	2
#define UNDONE	3

/* the slot's owner word in the region */
#define HELD	0
#define SWEPT	1
#define RETAINED	2
#define FREE	3

/* the log */
byte end = 1, oldest = 1;
byte kind[MAXL + 1], prev[MAXL + 1], key[MAXL + 1], before[MAXL + 1];	/* key: of a PREPARE the id */
/* the slot: its first and last record, and the next one to undo */
byte first, last, undo_next;
byte owned = HELD, by = OWNER;		/* its owner, living or dead */
byte locks;				/* zero: free; or OWNER for the slot, or another */
byte value[2];				/* of the two keys */
/* the region */
bool dead[ALL + 1];
byte deaths = DEATHS;
/* ghosts: the state that recovery would find */
bool logged_open, logged_prepared;
byte logged_last;
byte fate;				/* how it ended in the log */
byte decided;				/* the result returned to a decider */
bool owner_done;
byte ndone;

inline point()
{
	if
	:: true
	:: atomic { deaths > 0 -> deaths--; goto died }
	fi
}

/* one record; own: by the thread that has the slot, and chained */
inline append(k, p, ky, bf, chained)
{
	d_step {
		assert(end <= MAXL);
		kind[end] = k; prev[end] = p; key[end] = ky; before[end] = bf;
		if
		:: k == COMMIT -> first = 0; last = 0
		:: k != COMMIT && chained ->
			if :: first == 0 -> first = end :: else fi;
			last = end
		:: else
		fi;
		/* again.rs: Slots::note */
		if
		:: k == COMMIT || k == END -> logged_open = false; logged_prepared = false; logged_last = 0
		:: else -> logged_open = true; logged_prepared = (k == PREPARE); logged_last = end
		fi;
		if
		:: k == COMMIT -> assert(fate == OPEN || fate == PREPARED); fate = COMMITTED
		:: k == CLR || k == END ->
			assert(fate != COMMITTED);
			fate = UNDONE
		:: k == PREPARE -> fate = PREPARED
		:: else
		fi;
		end++
	}
}

#define ID	7
#define IS_PREPARED	(last != 0 && kind[last] == PREPARE)
#define IS_MINE	(IS_PREPARED && key[last] == ID)

/* undoes the record at `at`, and sets it to the next; own: of its own slot */
inline undo_one(own)
{
	assert(at >= oldest);			/* (d) */
	nx = prev[at];
	if
	:: kind[at] == CHANGE ->
		/* with a page intent: others find it rebuilt */
		atomic { append(CLR, nx, key[at], 0, own); point_rebuilt() };
		/* (a): no other thread has them */
		assert(locks == OWNER);
#ifdef UNDO_SUBTRACTS
		value[key[at]]--;
#else
		value[key[at]] = before[at];
#endif
		point()
	:: else
	fi;
	at = nx;
	nx = 0
}

/* a death between a record and its change: the page is rebuilt */
inline point_rebuilt()
{
	if
	:: true
	:: deaths > 0 -> deaths--;
		value[key[at]] = before[at];
		goto died
	fi
}

inline forget()
{
#ifdef FIRST_FIRST
	first = 0;
	point();
	last = 0;
#else
	last = 0;
	point();
	first = 0;
#endif
	point()
}

inline undo_all(own)
{
	at = (!own && undo_next >= first && undo_next < last -> undo_next : last);
#ifdef FORGETS_EARLY
	forget();
#endif
	do
	:: at != 0 ->
		if
		:: own
		:: else ->
#ifdef SKIPS_ONE
			undo_next = prev[at];
#else
			undo_next = at;
#endif
			point()
		fi;
		undo_one(own)
	:: else -> break
	od;
#if defined(END_UNCHAINED)
	append(END, 0, 0, 0, false);
	point();
#elif !defined(NO_END)
	append(END, 0, 0, 0, own);
	point();
#endif
	forget()
}

/* (a) and (b) */
inline release()
{
	d_step {
		assert(locks == OWNER);
		assert(!logged_open);
		assert(fate == COMMITTED || (value[0] == 0 && value[1] == 0));
		assert(fate != COMMITTED || (value[0] == WROTE0 && value[1] == WROTE1));
		locks = 0
	}
}

proctype Owner()
{
	byte me = OWNER, at = 0, nx = 0, n = 0;

	do
	:: n < WRITES ->
		atomic {
			append(CHANGE, last, (n == 2), (n == 1), true);
			at = last;
			if
			:: true
			:: deaths > 0 -> deaths--;
				value[key[at]] = (n == 1 -> 2 : 1);
				goto died
			fi
		};
		atomic { value[key[at]] = (n == 1 -> 2 : 1); n++; at = 0; point() }
	:: else -> break
	od;
	if
	:: WRITES > 0 ->
		append(COMMIT, last, 0, 0, true);
		point();
		release();
		point();
		atomic { owned = FREE; by = 0 }
	:: WRITES > 0 ->
#ifdef RELEASE_FIRST
		locks = 0;
#endif
		undo_all(true);
		release();
		point();
		atomic { owned = FREE; by = 0 }
#if ND > 0
	:: true ->
#ifdef RETAINS_FIRST
		atomic { owned = RETAINED; by = 0 };
		point();
#endif
		append(PREPARE, last, ID, 0, true);
		point();
		atomic { owned = RETAINED; by = 0 }
#endif
	fi;
	goto over;
died:
	dead[me] = true;
over:
	atomic { at = 0; nx = 0; n = 0; me = 0; owner_done = true; ndone++ }
}

/* a dead thread's slot, or one whose sweeper died */
#define CLAIMABLE	((owned == HELD || owned == SWEPT) && dead[by])

proctype Sweeper(byte me)
{
	byte at = 0, nx = 0;

end_none:
	atomic { CLAIMABLE -> owned = SWEPT; by = me };
	point();
	if
	:: last != 0 ->
		assert(last >= oldest);			/* (d): it is read */
		if
#ifndef UNDOES_PREPARED
		:: IS_PREPARED -> goto retain
#endif
		:: else ->
			assert(fate != PREPARED);	/* (c) */
#ifdef RELEASE_FIRST
			locks = 0;
#endif
#ifdef NOT_UNDONE
			skip
#else
			undo_all(false)
#endif
		fi
	:: else ->
#ifndef FORGETS_NOT
		/* it was forgotten in part */
		first = 0
#else
		skip
#endif
	fi;
	point();
	if
	:: locks == OWNER -> release()
	:: else
	fi;
	point();
	atomic { owned = FREE; by = 0; at = 0; nx = 0 };
	goto end_none;
retain:
	atomic { point(); owned = RETAINED; by = 0; at = 0; nx = 0 };
	goto end_none;
died:
	atomic { dead[me] = true; at = 0; nx = 0 }
}

#if ND > 0
/* commits or rolls back, and returns the result */
proctype Decider(byte me)
{
	byte at = 0, nx = 0, what = 0;

	if
	:: what = COMMITTED
	:: what = UNDONE
	fi;
	(fate != OPEN || owner_done);
look:
	if
	:: !IS_MINE -> goto over		/* NotPrepared */
	:: IS_MINE && owned == RETAINED
	fi;
	if
	:: atomic { owned == RETAINED -> owned = HELD; by = me }
	:: owned != RETAINED -> goto look
	fi;
	point();
#ifndef LOOKS_NOT_AGAIN
	if
	:: IS_MINE
	:: else ->
		/* it was decided since, and the slot is another's */
		atomic { owned = RETAINED; by = 0 };
		goto look
	fi;
#endif
#ifdef RELEASE_BEFORE_DECISION
	locks = 0;
	point();
#endif
	if
	:: what == COMMITTED -> append(COMMIT, last, 0, 0, true)
	:: else -> undo_all(true)
	fi;
	point();
	release();
	atomic {
		/* (c) */
		assert(decided == 0 && fate == what);
		decided = what;
		point();
		owned = FREE; by = 0
	};
	goto over;
died:
	dead[me] = true;
over:
	atomic { at = 0; nx = 0; what = 0; ndone++ }
}
#endif

#ifdef TENANT
/* has the slot next, and prepares another transaction */
proctype Tenant(byte me)
{
	atomic { owned == FREE -> owned = HELD; by = me };
	d_step {
		kind[end] = PREPARE; prev[end] = 0; key[end] = ID + 1;
		first = end; last = end; end++
	};
	atomic { owned = RETAINED; by = 0 };
	ndone++
}
#endif

proctype Other(byte me)
{
end_waits:
	atomic { locks == 0 -> locks = me };
	/* (a) */
	atomic {
		assert(fate == UNDONE || fate == COMMITTED);
		value[0] = 9; value[1] = 9;
		ndone++
	}
}

#if RUNS > 0
proctype Recycler()
{
	byte r = 0, upto = 0;

	do
	:: r < RUNS ->
		upto = end;
		atomic {
			if :: first != 0 && first < upto -> upto = first :: else fi
		};
		atomic { oldest = (upto > oldest -> upto : oldest); r++; upto = 0 }
	:: else -> break
	od;
	r = 0
}
#endif

init {
	byte i = 2;

	atomic {
		locks = OWNER;
		run Owner();
		do
		:: i <= 1 + NS -> run Sweeper(i); i++
#if ND > 0
		:: i > 1 + NS && i <= 1 + NS + ND -> run Decider(i); i++
#endif
		:: i > 1 + NS + ND && i <= 1 + NS + ND + NO -> run Other(i); i++
#ifdef TENANT
		:: i == ALL -> run Tenant(i); i++
#endif
		:: i > ALL -> i = 0; break
		od;
#if RUNS > 0
		run Recycler()
#endif
	};
	/* the monitor: nothing else can move */
	timeout;
	assert(owner_done);
	/* (e) */
	assert(owned == FREE || (owned == RETAINED && IS_PREPARED && (!IS_MINE || fate == PREPARED)));
	assert(owned == RETAINED || (first == 0 && last == 0));
	assert(owned == RETAINED || ndone == ALL - NS)
}
