/*
 * The snapshots of Latchwork's store, for Spin.
 *
 * Modelled: crates/store/src/files/shared.rs (low, visible, the line in which a
 * snapshot announces itself, discarding of the log), crates/store/src/seen.rs
 * (which version a snapshot sees), files/records.rs (last_commit, before), and
 * from crates/log slots.rs (open_of, commits_of), pins.rs (recycle), repair.rs
 * (a commit that is withdrawn).
 *
 *   writer     lock the key; log a write, with a page intent; change the page:
 *              its stamp is the write's place; log a commit, or undo: log that,
 *              restore the page's earlier stamp, forget the transaction.  Or
 *              log the write as the commit.  Unlock.
 *   append     latch; note the slot; change it: a commit's entry, the count,
 *              first = 0, or first; copy; store end; unlatch.  A reader loads
 *              each of these words without the latch.
 *   raise_low  load visible; of each slot first, and where that is 0 whether a
 *              commit is in the list and not before end: if none is, first
 *              again; the commits after visible; raise low to the least of all.
 *   recycler   raise_low; announce what is discarded; read all lines; move
 *              oldest under the latch; the places before it may be reused.
 *   reader     load low and visible; store its line; load what is discarded,
 *              and begin again if that is beyond.  Read the page; while its
 *              stamp is not seen, read the previous stamp from the log.  Clear
 *              the line.
 *   sees       before low: yes; after at: no; else by the last commit of the
 *              slot at or before at: from the list, or from the log, beginning
 *              at the oldest entry of the list.
 *   other      appends commits of a slot that does not use the key.
 *   sweeper    after a death of the first writer: repairs the latch, rebuilds
 *              the page, undoes the transaction, unlocks the key.
 *
 * Not modelled.  Memory is sequentially consistent: crates/check/tests/
 * store_loom has the barriers.  There is one key, on one page, which readers
 * read in one step and not while a writer has it.  A record of the log is read
 * in one step.  A snapshot reads the key once.  With HISTORY the log is
 * discarded even if snapshots need it, as with a store's bound on history;
 * otherwise no snapshot is ever too old.
 *
 * Properties.
 *   (a) a snapshot reads the version that was committed last at its position
 *       (ghost: version[], the write of each commit).
 *   (b) it finds that version in the log or, with HISTORY, gets the error that
 *       it is gone.  A recycled place has another record, or none.
 *   (c) before low no transaction is open, and none has a commit after visible
 *       (ghosts: open[], version[]).
 *   (d) with DURABLE: its position is durable, or was shown.
 *   (e) no thread is stuck.
 *
 * An earlier form of the code is the mutant END_ONCE: commits_of loaded end
 * once, and skipped the commits that are not before it.  If the slot had since
 * made as many commits as its list keeps, it skipped all of them and returned
 * none.  It loads end again.
 *
 * Compile-time numbers: NW writers of TX transactions each; NO others, of one
 * commit each; NR readers; RUNS of the recycler; LIST entries of a slot's list,
 * one more than are read; DEATHS 0 or 1; DURABLE: commits are seen when they
 * are flushed, or shown.  Mutants: see the script "run".
 */

#ifndef NW
#define NW 1
#endif
#ifndef TX
#define TX 1
#endif
#ifndef NO
#define NO 0
#endif
#ifndef NR
#define NR 1
#endif
#ifndef RUNS
#define RUNS 1
#endif
#ifndef LIST
#define LIST 3
#endif
#ifndef DEATHS
#define DEATHS 0
#endif

#define SLOTS	(NW + NO)	/* 1..SLOTS; the sweeper and readers behind */
#define SWEEPER	(SLOTS + 1)
#define MAXL	(NW * TX * 2 + NO + DEATHS)
#ifndef FLUSHES
#define FLUSHES 1
#endif
#ifdef READS_ALL
#define KEPT	LIST
#else
#define KEPT	(LIST - 1)
#endif

#define WRITE	0
#define COMMIT	1
#define BOTH	2
#define UNDO	3
#define COMMITS(k)	(k == COMMIT || k == BOTH)

#ifdef FINE
#define MERGED
#else
#define MERGED	atomic
#endif

/* shared: the log */
byte latch, end = 1, flushed = 1, oldest = 1;
byte note_slot, note_first, note_commits, note_lsn;
byte first[SLOTS + 2], commits[SLOTS + 2];
byte began[(SLOTS + 2) * LIST], ended[(SLOTS + 2) * LIST];
byte place[MAXL + 2];			/* the record there */
byte was[MAXL + 2];			/* the stamp before this write */
byte older[MAXL + 2];			/* the slot's commit before this one */
byte owner[MAXL + 2];			/* whose it is */
/* the store */
byte low = 1, shown = 1, given_up;
byte line[NR + 1];
byte page, in_hand, key;		/* stamp; the thread that has the page; the lock */
/* the region */
bool dead, swept;
byte deaths = DEATHS;
byte ndone;
/* ghosts */
byte version[MAXL + 2];
bool open[MAXL + 2];
byte writes[SLOTS + 2];			/* the slot's write that is in the log */
hidden byte gi;

inline point()
{
	if
	:: true
	:: atomic { deaths > 0 && me == 1 -> deaths--; goto died }
	fi
}

#define AT(s, n)	((s) * LIST + (n) % LIST)

inline repair_append()
{
	if
	:: note_lsn >= end ->
#ifdef REPAIR_COMMITS_FIRST
		commits[note_slot] = note_commits;
		first[note_slot] = note_first;
#elif defined(REPAIR_FORGETS_COMMITS)
		first[note_slot] = note_first;
#else
		first[note_slot] = note_first;
		commits[note_slot] = note_commits;
#endif
		note_lsn = 0
	:: else
	fi
}

inline lock_latch()
{
	if
	:: atomic { latch == 0 -> latch = me }
	:: atomic { latch == 1 && dead -> latch = me };
		repair_append()
	fi
}

/* kind: a macro's or a variable's value.  Leaves l = the record's place. */
inline append(kind)
{
	lock_latch();
	atomic {
		point();
		l = end;
		note_slot = me; note_first = first[me]; note_commits = commits[me];
		note_lsn = l;
		point()
	};
	if
	:: COMMITS(kind) ->
		ok = (first[me] == 0 -> l : first[me]);
#ifdef COUNT_FIRST
		commits[me]++;
		began[AT(me, commits[me] - 1)] = ok;
		ended[AT(me, commits[me] - 1)] = l;
#else
		MERGED {
			began[AT(me, commits[me])] = ok;
			ended[AT(me, commits[me])] = l
		};
		atomic { commits[me]++; point() };
#endif
		atomic { first[me] = 0; ok = 0; point() }
	:: else ->
		if
		:: atomic { first[me] == 0 && me != SWEEPER -> first[me] = l; point() }
		:: else
		fi
	fi;
	d_step {
		place[l] = l;
		owner[l] = me;
		was[l] = page;
		older[l] = 0;
		if
		:: COMMITS(kind) && commits[me] > 1 -> older[l] = ended[AT(me, commits[me] - 2)]
		:: else
		fi
	};
	point();
	d_step {
		end = l + 1;
		if
		:: kind == WRITE -> open[l] = true; writes[me] = l
		:: kind == BOTH -> version[l] = l; writes[me] = l
		:: kind == COMMIT ->
			version[l] = writes[me];
			if :: writes[me] != 0 -> open[writes[me]] = false :: else fi
		:: else
		fi
	};
	atomic { point(); latch = 0 }
}

inline forget(slot)
{
	lock_latch();
	atomic { first[slot] = 0; latch = 0 }
}

/* the code's `visible`, one less than a frontier */
inline load_visible(to)
{
#ifdef DURABLE
#ifdef VISIBLE_AT_END
	to = end - 1;
#else
	to = flushed;
	atomic { to = (shown > to -> shown : to) - 1 };
#endif
#else
	to = end - 1;
#endif
}

/* leaves lo = low as it is then.  Uses s, v, e, c, i, b, n. */
inline raise_low()
{
#ifdef LOW_FROM_END
	v = end - 1;
#else
	load_visible(v);
#endif
	atomic { lo = v + 1; s = 1 };
	do
	:: s <= SLOTS ->
		/* open_of */
		b = first[s];
#ifndef NO_LOOK_AT_COMMITS
		if
		:: b != 0
		:: else ->
			do	/* being_committed */
			:: c = commits[s];
				if
				:: c == 0 -> b = 0; break
				:: else
				fi;
				atomic { b = began[AT(s, c - 1)]; i = ended[AT(s, c - 1)] };
				if
				:: commits[s] == c ->
					atomic {
						if :: i < end -> b = 0 :: else fi;
						break
					}
				:: commits[s] != c
				fi
			od;
#ifndef LOOKS_ONCE
			if
			:: b == 0 -> b = first[s]
			:: else
			fi
#else
			skip
#endif
		fi;
#endif
		atomic {
			if :: b != 0 && b < lo -> lo = b :: else fi;
			b = 0; i = 0; c = 0
		};
		/* commits_of */
		e = end;
		do
		:: atomic { c = commits[s]; i = c; n = 0 };
			do
			:: i > 0 && c - i < KEPT ->
				atomic {
					b = ended[AT(s, i - 1)];
					i--;
					if
					:: b >= e
					:: b < e && b <= v -> break
					:: b < e && b > v ->
#ifndef UNSEEN_IGNORED
						if
						:: began[AT(s, i)] < lo -> lo = began[AT(s, i)]
						:: else
						fi;
#endif
						n++
					fi
				}
			:: else -> break
			od;
			atomic {
				if
				:: commits[s] - i > KEPT
#ifndef END_ONCE
				/* all are behind that end: which has others by now */
				:: commits[s] - i <= KEPT && i > 0 && c - i == KEPT && b >= e -> e = end
#endif
				:: else -> break
				fi
			}
		od;
		if
		:: n >= KEPT -> atomic { lo = 0; s = SLOTS }
		:: else
		fi;
		atomic { s++; b = 0; i = 0; c = 0; e = 0; n = 0 }
	:: else -> break
	od;
	atomic {
		/* (c) */
		gi = 1;
		do
		:: gi <= MAXL ->
			assert(gi >= lo || !open[gi]);
			assert(gi <= v || version[gi] == 0 || version[gi] >= lo);
			gi++
		:: else -> break
		od;
		gi = 0;
		if :: lo > low -> low = lo :: else fi;
		lo = low;
		s = 0; v = 0
	}
}

proctype Writer(byte me)
{
	byte l = 0, ok = 0, n = 0, kind = 0;

	do
	:: n < TX ->
		atomic {
			key == 0 -> key = me;
			if
			:: kind = WRITE
			:: kind = BOTH
			fi
		};
again:
		/* the page is in hand before the log is entered */
#ifndef PAGE_UNLATCHED
		atomic { kind == COMMIT || in_hand == 0 -> in_hand = (kind == COMMIT -> in_hand : me) };
#endif
#ifdef FORGET_FIRST
		if
		:: kind == UNDO -> forget(me)
		:: else
		fi;
#endif
		append(kind);
		if
		:: atomic { kind == WRITE || kind == BOTH -> page = l; in_hand = 0 }
		:: atomic { kind == UNDO -> page = was[writes[me]]; open[writes[me]] = false; in_hand = 0 }
		:: kind == COMMIT
		fi;
		point();
		if
		:: kind == WRITE ->
			if
			:: kind = COMMIT
			:: kind = UNDO
			fi;
			goto again
#ifndef FORGET_FIRST
		:: kind == UNDO -> forget(me); point()
#endif
		:: else
		fi;
#ifdef DURABLE
		if	/* it does not wait for the disk */
		:: COMMITS(kind) -> atomic { shown = (shown > l + 1 -> shown : l + 1) }
		:: true
		fi;
#endif
		atomic { key = 0; l = 0; n++; kind = 0; writes[me] = 0 }
	:: else -> break
	od;
	goto over;
died:
	dead = true;
over:
	atomic { l = 0; ok = 0; n = 0; kind = 0; ndone++ }
}

#if NO > 0
proctype Other(byte me)
{
	byte l = 0, ok = 0;

	append(COMMIT);
	goto over;
died:
over:
	atomic { l = 0; ok = 0; ndone++ }
}
#endif

#if DEATHS > 0
proctype Sweeper()
{
	byte l = 0, ok = 0, me = SWEEPER;

end_none:
	dead;
	if
	:: atomic { latch == 1 -> latch = me };
		repair_append();
		latch = 0
	:: latch != 1
	fi;
	if
	:: first[1] != 0 ->
		/* the page is rebuilt, and then undone in place */
		atomic {
			in_hand == 0 || in_hand == 1;
			if
			:: in_hand == 1 && page < first[1] -> page = first[1]
			:: else
			fi;
			in_hand = me
		};
		append(UNDO);
		atomic { page = was[first[1]]; open[first[1]] = false; in_hand = 0 };
		forget(1)
	:: else ->
		/* its last record is committed, or it had none */
		atomic {
			if
			:: in_hand == 1 && writes[1] > page -> page = writes[1]; in_hand = 0
			:: in_hand == 1 && writes[1] <= page -> in_hand = 0
			:: else
			fi
		}
	fi;
	atomic {
		if :: key == 1 -> key = 0 :: else fi;
		swept = true;
		l = 0; ok = 0
	};
	goto over;
died:
over:
	skip
}
#endif

#ifdef DURABLE
proctype Flusher()
{
	byte i = 0;

	do
	:: i < FLUSHES -> flushed = end; i++
	:: true -> break
	od;
	i = 0
}
#endif

proctype Recycler()
{
	byte r = 0, lo = 0, v = 0, s = 0, b = 0, c = 0, e = 0, i = 0, n = 0, q = 0;

	do
	:: r < RUNS ->
#ifdef LINES_FIRST
		atomic {
			q = 255; s = 1;
			do
			:: s <= NR ->
				if :: line[s] != 0 && line[s] - 1 < q -> q = line[s] - 1 :: else fi;
				s++
			:: else -> break
			od;
			s = 0
		};
#endif
		raise_low();
		atomic { given_up = (given_up > lo -> given_up : lo); v = 0 };
		s = 1;
#ifdef LINES_FIRST
		atomic { lo = (lo < q -> lo : q); q = 0 };
#else
		do
		:: s <= NR ->
			atomic {
				if :: line[s] != 0 && line[s] - 1 < lo -> lo = line[s] - 1 :: else fi;
				s++
			}
		:: else -> break
		od;
#endif
#ifdef HISTORY
		lo = end;
#endif
#ifndef OLDEST_LATE
		atomic { oldest = (oldest > lo -> oldest : lo) };
#endif
		s = 1;
		do
		:: s < lo && s <= MAXL -> place[s] = 0; s++
		:: else -> break
		od;
#ifdef OLDEST_LATE
		atomic { oldest = (oldest > lo -> oldest : lo) };
#endif
		atomic { s = 0; lo = 0; r++ }
	:: else -> break
	od;
	r = 0
}

/* leaves yes */
inline sees()
{
	if
	:: v < lo -> yes = true
	:: v >= lo && v > at -> yes = false
	:: else ->
		/* last_commit: commits_of */
		atomic { e = end; s = owner[v] };
		do
		:: atomic { c = commits[s]; i = c; found = 0; oldest_seen = 0 };
			do
			:: i > 0 && c - i < KEPT ->
				atomic {
					b = ended[AT(s, i - 1)];
					i--;
					if
					:: b >= e
					:: b < e && b <= at -> found = b; break
					:: b < e && b > at -> oldest_seen = b
					fi
				}
			:: else -> break
			od;
#ifdef COUNT_NOT_AGAIN
			break
#else
			atomic {
				if
				:: commits[s] - i > KEPT
#ifndef END_ONCE
				:: commits[s] - i <= KEPT && i > 0 && c - i == KEPT && b >= e -> e = end
#endif
				:: else -> break
				fi
			}
#endif
		od;
		do	/* longer ago than the list */
		:: found == 0 && oldest_seen != 0 ->
#ifdef LIST_ALONE
			break
#else
			atomic {
				if
				:: place[oldest_seen] != oldest_seen -> break
				:: else
				fi;
				if
				:: older[oldest_seen] <= at -> found = older[oldest_seen]; break
				:: else -> oldest_seen = older[oldest_seen]
				fi
			}
#endif
		:: else -> break
		od;
		atomic { yes = (v <= found); c = 0; i = 0; b = 0; e = 0; s = 0; found = 0; oldest_seen = 0 }
	fi
}

proctype Reader(byte me)
{
	byte lo = 0, at = 0, v = 0, s = 0, c = 0, e = 0, i = 0, b = 0;
	byte found = 0, oldest_seen = 0, expected = 0;
	bool yes = false;

	do
	::
#ifdef VISIBLE_FIRST
		load_visible(at);
		lo = low;
#else
		lo = low;
		load_visible(at);
#endif
		/* ghost: the version committed at `at`, which never changes */
		d_step {
			gi = 1; expected = 0;
			do
			:: gi <= at && gi <= MAXL ->
				if :: version[gi] != 0 -> expected = version[gi] :: else fi;
				gi++
			:: else -> break
			od;
#ifdef DURABLE
			assert(at < flushed || at < shown);	/* (d) */
#endif
			gi = 0
		};
#ifndef NOT_TOLD
		line[me] = lo + 1;
#endif
#ifdef NOT_AGAIN
		break
#else
		if
		:: given_up <= lo -> break
		:: given_up > lo
		fi
#endif
	od;
	atomic { in_hand == 0 -> v = page };
	do
	:: sees();
		if
		:: yes -> break
		:: else
		fi;
		/* the version before it, from the log */
		if
		:: atomic { place[v] == v -> v = was[v] }
		:: atomic { place[v] != v };
			/* (b): the place has no record, and the log begins after it */
			assert(v < oldest);
#ifndef HISTORY
			assert(oldest == 0);
#endif
			goto gone
		fi
	od;
	assert(v == expected);			/* (a) */
gone:
	atomic {
		line[me] = 0; yes = false;
		lo = 0; at = 0; v = 0; expected = 0
	}
}

init {
	byte i = 1;

	atomic {
		do
		:: i <= NW -> run Writer(i); i++
#if NO > 0
		:: i > NW && i <= SLOTS -> run Other(i); i++
#endif
		:: i > SLOTS -> i = 1; break
		od;
		do
		:: i <= NR -> run Reader(i); i++
		:: else -> i = 0; break
		od;
		run Recycler();
#ifdef DURABLE
		run Flusher();
#endif
#if DEATHS > 0
		run Sweeper()
#endif
	}
}
