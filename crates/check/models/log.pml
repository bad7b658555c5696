/*
 * The frontiers of Latchwork's log, for Spin.
 *
 * Modelled: crates/log/src/flush.rs (leader and followers), credit.rs (room in
 * the buffer), repair.rs (what a dead thread left), and from
 * crates/store/src/store.rs how a transaction without writes waits.  An append
 * is simplified: one thread at a time appends, under the latch.  place.pml has
 * the steps of the code: groups of requests, places, concurrent copies, and the
 * end that a leader moves.  With RECOVERY it is another, small model:
 * recover.rs, and the files after a crash of the machine.
 *
 *   writer     lock the item; append a record; change the item; with two
 *              records, append another; unlock the item; flush; answer.  The
 *              last record commits.
 *   reader     lock the item; read it; unlock it; load end, and flush up to
 *              that if flushed is less; answer.
 *   reserve    latch; if the buffer has room for one record more than all
 *              credit: slot's credit, then the sum; unlatch.  Else write out,
 *              or wait for the leader.
 *   append     latch; note the slot; change it (a commit: list and count,
 *              first, last); subtract credit from the sum and the slot; copy
 *              the record at end, in two steps; store end; unlatch.  So places
 *              are given and filled one after the other, and reserved equals
 *              end.  The sum is promised minus reserved, two words in the code.
 *   latch      a word that names its holder.  A thread that finds a dead holder
 *              claims the holder's slot, takes the latch over, releases the
 *              claim, and repairs: it recounts the credit and ends an
 *              unfinished append by restoring the slot from the note, if the
 *              note's record is not before end.  No void is needed, because no
 *              place after that record has been given yet.
 *   flush      claim flusher; read end; copy [written, end) from the buffer to
 *              the files, a record a step; store written; sync; store flushed;
 *              release the claim; wake the threads whose position is reached,
 *              and one of the others.  A follower stores the position that it
 *              waits for, checks again, sleeps; after a nap it removes the
 *              claim of a dead leader.
 *   sweep      claim a dead slot; open the latch, and repair; remove its claim
 *              on flusher, and wake; return its credit; release its lock.  The
 *              item then agrees with the log: committed, or undone.  A record
 *              that the sweep has ended is before end then (place.pml).
 *
 * A thread may die wherever the code has a point, and at other steps: at
 * point() below, DEATHS times in a run.  With two sweepers, one may also die.
 *
 * Not modelled.  Memory is sequentially consistent.  A record has one unit, and
 * a portion of credit is one record.  There are no segments, so none is ever
 * missing, and no reserved space.  Writes and syncs do not fail.  Changes of a
 * dead writer are undone in one step (undo.pml has more).  A nap ends only in a
 * run in which a thread died: otherwise it would hide a missing wake.
 *
 * Properties.
 *   (a) an acknowledged commit, and data that an acknowledged reader has read,
 *       is durable, with all records before it: durable[] at answer().
 *   (b) the leader copies whole records to the files, as appended at these
 *       places: the buffer at lead().
 *   (c) whenever the latch is released, each slot agrees with the log: first,
 *       last and the count of commits (ghosts: g_first, g_last, g_commits), and
 *       the sum of credit is correct.
 *   (d) no thread is stuck: each living thread reaches its end (an end state
 *       otherwise).  As an LTL formula, with NAPS at any time: each does.
 *   (e) with RECOVERY: a recovered log is a prefix of the appended one
 *       (truth[]), it has everything acknowledged, and no crash is taken for
 *       damage.
 *
 * Compile-time numbers: NW writers, the first TWO of them with two records; NR
 * readers; NSW sweepers; DEATHS; B records in the buffer; with RECOVERY: LIVES,
 * RECORDS.  Mutants: see the script "run".
 */

#ifndef NW
#define NW 2
#endif
#ifndef TWO
#define TWO 1
#endif
#ifndef NR
#define NR 1
#endif
#ifndef NSW
#define NSW 1
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef B
#define B 2
#endif

#ifdef RECOVERY
/*
 * The files of a log over some lives of the machine.  disk[l] is what is
 * durable at the place l, file[l] what the system has there; a record is the
 * place and the life that appended it, and fits if the place is right.  A
 * crash of the machine keeps any part of what was not synced.  The loss of the
 * memory alone (all processes killed, /dev/shm gone) keeps file[].
 */
#ifndef LIVES
#define LIVES 3
#endif
#ifndef RECORDS
#define RECORDS 3
#endif
#define REC(l, n)	((l) * 8 + (n))
#define FITS(v, l)	((v) / 8 == (l))

byte file[RECORDS + 2], disk[RECORDS + 2], truth[RECORDS + 2];
byte end = 1;		/* the place of the next record */
byte flushed = 1;	/* all before it was answered for */
byte known = 1;		/* the flushed that the control file has */
byte life = 1;
byte i;

inline over(machine)
{
	d_step { i = 1 };
	do
	:: machine && i <= RECORDS && file[i] != disk[i] ->
		if
		:: disk[i] = file[i]
		:: file[i] = disk[i]
		fi;
		i++
	:: machine && i <= RECORDS && file[i] == disk[i] -> i++
	:: !machine || i > RECORDS -> break
	od;
	i = 0
}

/* the machine crashes here, or all memory is lost, or neither */
inline fails()
{
	if
	:: true
	:: atomic { over(true); goto reopen }
	:: atomic { over(false); goto reopen }
	fi
}

inline sync()
{
	d_step {
		i = 1;
		do
		:: i <= RECORDS -> disk[i] = file[i]; i++
		:: else -> break
		od;
		i = 0
	}
}

active proctype Machine()
{
	byte at = 0;

	goto living;
reopen:
	if
	:: life == LIVES -> goto stop
	:: else -> life++
	fi;
	atomic {
		at = 1;
		do
		:: at <= RECORDS && FITS(file[at], at) -> at++
		:: else -> break
		od;
		assert(at >= known);		/* else: LogDamaged */
		assert(at >= flushed);
		i = 1;
		do
		:: i < at -> assert(file[i] == truth[i]); i++
		:: else -> break
		od;
		end = at;
		do
		:: i <= RECORDS -> truth[i] = 0; i++
		:: else -> break
		od;
		i = 0
	};
	fails();
#ifdef SYNC_BEFORE_CLEAR
	sync();
	fails();
#endif
#ifndef NO_CLEAR
	do
	:: at <= RECORDS ->
		if
		:: file[at] != 0 -> file[at] = 0; fails()
		:: else
		fi;
		at++
	:: else -> break
	od;
#endif
	at = 0;
#if !defined(NO_SYNC) && !defined(SYNC_BEFORE_CLEAR)
	sync();
	fails();
#endif
	/* it counts as durable from here on */
	flushed = end;
living:
	do
	:: end <= RECORDS ->
		d_step { file[end] = REC(end, life); truth[end] = REC(end, life); end++ };
		fails()
	:: flushed < end ->
#ifndef FLUSHED_BEFORE_SYNC
		sync();
		fails();
#endif
		flushed = end;
		fails();
#ifdef FLUSHED_BEFORE_SYNC
		sync();
#endif
#ifdef KNOWN_END
	:: known < end -> known = end; fails()
#else
	:: known < flushed -> known = flushed; fails()	/* a control file is written */
#endif
	:: goto reopen			/* the last process closes: memory is lost */
	od;
stop:
	skip
}

#else /* the log itself */

#define N	(NW + NR)		/* threads 1..N, sweepers behind them */
#define ALL	(N + NSW)
#define MAXL	(NW + TWO)		/* records in a run */
#define TORN	255
#define RECORD(l)	((l) * 8 + me)	/* its place and its owner */
#define WRITTEN	0
#define FLUSHED	1
#define FRONTIER(u)	((u) * flushed + (1 - (u)) * written)

/* shared: the log */
byte latch;				/* zero, or its holder */
byte end = 1, written = 1, flushed = 1;
byte flusher;
byte note_slot, note_first, note_last, note_commits, note_lsn;
byte all;				/* credit of all */
byte first[ALL + 1], last[ALL + 1], commits[ALL + 1], credit[ALL + 1];
byte waits[ALL + 1], how[ALL + 1];
bool rung[ALL + 1];			/* the notifier was moved since */
byte buffer[B];
byte files[MAXL + 2], durable[MAXL + 2];
/* the region */
bool dead[ALL + 1], swept[ALL + 1];
byte claim[ALL + 1];			/* the thread that sweeps or checks a dead slot */
byte deaths = DEATHS;
/* the program */
byte item;				/* the thread that has it locked */
byte value;				/* the thread that wrote it last */
byte before[ALL + 1];			/* what it was, for undoing */
byte ndone;
/* ghosts */
byte truth[MAXL + 2];
byte g_first[ALL + 1], g_last[ALL + 1], g_commits[ALL + 1], g_commit[ALL + 1];
/* scratch, never part of a state */
hidden byte gi, gs;

#ifdef FINE
#define MERGED				/* each step on its own */
#else
#define MERGED	atomic
#endif

#if NSW > 1
#define MORTAL	ALL
#else
#define MORTAL	N
#endif

/* the thread lives on, or dies here */
inline point()
{
	if
	:: true
	:: atomic { deaths > 0 && me <= MORTAL -> deaths--; goto died }
	fi
}

#define RESTS(d)	(!dead[d] || swept[d])
#define CLAIMABLE(d)	(dead[d] && !swept[d] && (claim[d] == 0 || dead[claim[d]]))
#if NW + NR + NSW == 3
#define ALL_REST	(RESTS(1) && RESTS(2) && RESTS(3))
#elif NW + NR + NSW == 4
#define ALL_REST	(RESTS(1) && RESTS(2) && RESTS(3) && RESTS(4))
#else
#define ALL_REST	(RESTS(1) && RESTS(2) && RESTS(3) && RESTS(4) && RESTS(5))
#endif
#ifdef NAPS
#define NAP	true
#else
#define NAP	(deaths < DEATHS)
#endif

/* (c) */
inline unlatch()
{
	d_step {
		gi = 1; gs = 0;
		do
		:: gi <= ALL ->
			assert(first[gi] == g_first[gi] && last[gi] == g_last[gi]);
			assert(commits[gi] == g_commits[gi]);
			gs = gs + credit[gi];
			gi++
		:: else -> break
		od;
		assert(all == gs);
		gi = 0; gs = 0;
		latch = 0
	}
}

/* repair_append and end_flight, with the latch */
inline repair_append()
{
	atomic {
		if
#ifdef REPAIR_ALWAYS
		:: true ->
#else
		:: note_lsn >= end ->
#endif
			first[note_slot] = note_first;
			point();
#ifndef REPAIR_FORGETS_LAST
			last[note_slot] = note_last;
#endif
			point();
#ifndef REPAIR_FORGETS_COMMITS
			commits[note_slot] = note_commits;
#endif
			point();
			note_lsn = 0
		:: else
		fi;
		point();
#ifndef REPAIR_FORGETS_CREDIT
		d_step {
			all = 0; gi = 1;
			do
			:: gi <= ALL -> all = all + credit[gi]; gi++
			:: else -> break
			od;
			gi = 0
		};
#endif
		point()
	}
}

inline lock_latch()
{
	do
	:: atomic { latch == 0 -> latch = me }; break
#ifndef LATCH_STAYS
	:: atomic { latch != 0 && CLAIMABLE(latch) -> h = latch; claim[h] = me };
		point();
		if
		:: atomic { latch == h -> latch = me };
			atomic { point(); claim[h] = 0; h = 0 };
			repair_append();
			break
		:: atomic { latch != h -> claim[h] = 0; h = 0 }
		fi
#endif
	od
}

inline arrived(l, u, to)
{
	to = (FRONTIER(u) > l)
}

#define ARRIVED(s)	(FRONTIER(how[s]) > waits[s])

/* all in one step: a slot that begins to wait during it checks again itself */
inline wake()
{
	d_step {
#ifndef NO_WAKE
		gi = 1; gs = 0;
		do
		:: gi <= ALL ->
			if
			:: waits[gi] == 0
			:: waits[gi] != 0 && ARRIVED(gi) ->
				rung[gi] = true
#ifndef WAKE_NO_NEXT
			:: waits[gi] != 0 && !ARRIVED(gi) && gs == 0 ->
				rung[gi] = true; gs = 1
#endif
			:: else
			fi;
			gi++
		:: else -> break
		od;
		gi = 0; gs = 0
#else
		skip
#endif
	}
}

inline lead(u)
{
	MERGED {
		atomic { point(); e = end; at = written };
		do
		:: at < e ->
			atomic {
				/* (b) */
				assert(buffer[at % B] == truth[at]);
				files[at] = buffer[at % B];
				at++;
				point()
			}
		:: else -> break
		od;
		atomic { written = e; at = 0; point() }
	};
	if
	:: u == FLUSHED ->
		MERGED {
#ifdef FLUSHED_BEFORE_SYNC
			flushed = e;
#endif
#ifndef NO_SYNC
			d_step {
				gi = flushed;
				do
#ifdef SYNC_BEFORE_WRITE
				:: gi + 1 < e -> durable[gi] = files[gi]; gi++
#else
				:: gi < e -> durable[gi] = files[gi]; gi++
#endif
				:: else -> break
				od;
				gi = 0
			};
#endif
			atomic { point(); flushed = e; e = 0; point() }
		}
	:: else -> e = 0
	fi
}

inline follow(l, u)
{
#ifdef LOOKS_FIRST
	arrived(l, u, ok);
	ok = (flusher != 0 && !ok);
#endif
	d_step { rung[me] = false; how[me] = u; waits[me] = l };
#ifndef LOOKS_FIRST
	ok = (flusher != 0);
	if
	:: ok -> atomic { arrived(l, u, ok); ok = !ok }
	:: else
	fi;
#endif
	if
	:: ok ->
		point();
		if
		:: rung[me]
#ifndef LEADER_STAYS
		:: NAP && !rung[me] ->
			h = flusher;
			if
			:: atomic { h != 0 && CLAIMABLE(h) -> claim[h] = me };
				point();
				if
				:: atomic { flusher == h -> flusher = 0 }
				:: flusher != h
				fi;
				claim[h] = 0
			:: else
			fi;
			h = 0
#endif
		fi
	:: else
	fi;
	d_step { waits[me] = 0; how[me] = 0; rung[me] = false; ok = 0 }
}

inline advance(l, u)
{
	do
	:: atomic { FRONTIER(u) > l -> break }
	:: atomic { FRONTIER(u) <= l };
		if
#ifdef NO_CLAIM
		:: true ->
#else
		:: atomic { flusher == 0 -> flusher = me };
#endif
			arrived(l, u, ok);
			if
			:: ok -> ok = 0
			:: else -> lead(u)
			fi;
			atomic {
				if :: flusher == me -> flusher = 0 :: else fi;
				point()
			};
			wake()
		:: flusher != 0 -> follow(l, u)
		fi
	od
}

/* one look for room: leaves l = where the log ends if there is none */
inline reserve()
{
	MERGED {
		lock_latch();
		atomic {
			ok = false;
			if
#ifdef CREDIT_UNBOUNDED
			:: true ->
#else
			:: end - written + all < B ->
#endif
				credit[me]++;
				point();
				all++;
				ok = true
			:: else
			fi;
			point();
			l = end - 1;
			unlatch()
		}
	}
}

inline note()
{
	note_slot = me;
	note_first = first[me]; note_last = last[me]; note_commits = commits[me];
	point();
	note_lsn = l;
	point()
}

/* is_last: the record commits the transaction.  Leaves l = its place. */
inline append(is_last)
{
	MERGED {
	lock_latch();
	atomic {
		point();
		l = end;
#ifndef NOTE_LATE
		note();
#endif
		if
		:: is_last ->
			commits[me]++;
			point();
			first[me] = 0;
			point();
			last[me] = 0
		:: else ->
			if :: first[me] == 0 -> first[me] = l :: else fi;
			point();
			last[me] = l
		fi;
		point();
#ifdef NOTE_LATE
		note();
#endif
		all--;
		point();
		credit[me]--;
		point()
	};
#ifdef END_FIRST
	stores_end(is_last);
	point();
#endif
	buffer[l % B] = TORN;
	point();
	buffer[l % B] = RECORD(l);
	point();
#ifndef END_FIRST
	stores_end(is_last);
	point();
#endif
	unlatch()
	}
}

inline stores_end(is_last)
{
	d_step {
		end = l + 1;
		truth[l] = RECORD(l);
		if
		:: is_last -> g_commits[me]++; g_first[me] = 0; g_last[me] = 0; g_commit[me] = l
		:: else -> g_last[me] = l; if :: g_first[me] == 0 -> g_first[me] = l :: else fi
		fi
	}
}

/* (a) */
inline answer(upto)
{
	d_step {
		gi = 1;
		do
		:: gi <= upto -> assert(durable[gi] == truth[gi] && truth[gi] != 0); gi++
		:: else -> break
		od;
		gi = 0
	}
}

proctype Writer(byte me)
{
	byte l = 0, e = 0, at = 0, h = 0, ok = 0, n = 0;

	atomic { item == 0 -> item = me; before[me] = value; point() };
	if
	:: me <= TWO -> n = 2
	:: else -> n = 1
	fi;
	do
	:: n > 0 ->
		do
		:: credit[me] > 0 -> ok = 0; break
		:: else ->
			reserve();
			if
			:: ok
			:: else -> goto waits_for
			fi
		od;
#ifdef RELEASE_BEFORE_COMMIT
		if :: n == 1 -> item = 0 :: else fi;
#endif
		append(n == 1);
		atomic {
			n--;
			if :: item == me -> value = me :: else fi;
			if :: n > 0 -> l = 0 :: else fi
		}
	:: n == 0 ->
		atomic {
			point();
			if :: item == me -> item = 0 :: else fi;
			point()
		};
waits_for:
		/* for room, or to be durable */
		advance(l, (n == 0));
		if
		:: n == 0 -> break
		:: else -> l = 0
		fi
	od;
	answer(l);
	goto over;
died:
	dead[me] = true;
over:
	atomic { l = 0; e = 0; at = 0; h = 0; ok = 0; n = 0; ndone++ }
}

proctype Reader(byte me)
{
	byte l = 0, e = 0, at = 0, h = 0, ok = 0, saw = 0;

#ifdef READER_LOADS_END_FIRST
	l = end - 1;
#endif
	atomic { item == 0 -> item = me; point() };
	atomic { saw = value; point(); item = 0; point() };
#ifndef READER_DOES_NOT_WAIT
#ifndef READER_LOADS_END_FIRST
	l = end - 1;
#endif
	if
	:: flushed <= l -> advance(l, FLUSHED)
	:: else
	fi;
#endif
	/* what it read is committed, and durable */
	assert(saw == 0 || g_commit[saw] != 0);
	answer(g_commit[saw]);
	goto over;
died:
	dead[me] = true;
over:
	atomic { l = 0; e = 0; at = 0; h = 0; ok = 0; saw = 0; ndone++ }
}

#ifdef LTL
ltl all_are_answered { <> (ndone == N) }
#endif

/* sweeps what is dead, until all threads have ended and are swept */
proctype Sweeper(byte me)
{
	byte l = 0, e = 0, at = 0, h = 0, ok = 0, d = 0;

	do
	:: atomic { CLAIMABLE(1) -> d = 1 } -> goto sweep
#if ALL > 1
	:: atomic { CLAIMABLE(2) -> d = 2 } -> goto sweep
#endif
#if ALL > 2
	:: atomic { CLAIMABLE(3) -> d = 3 } -> goto sweep
#endif
#if ALL > 3
	:: atomic { CLAIMABLE(4) -> d = 4 } -> goto sweep
#endif
#if ALL > 4
	:: atomic { CLAIMABLE(5) -> d = 5 } -> goto sweep
#endif
	:: atomic { ndone == N && ALL_REST -> goto over };
sweep:
	atomic {
		if
		:: CLAIMABLE(d) -> claim[d] = me
		:: else -> goto next
		fi
	};
	point();
#ifndef LATCH_STAYS
	if
	:: atomic { latch == d -> latch = me };
		point();
		repair_append();
		unlatch()
	:: latch != d
	fi;
#endif
#ifndef LEADER_STAYS
	atomic { if :: flusher == d -> flusher = 0 :: else fi; point() };
#endif
	wake();
	waits[d] = 0;
	lock_latch();
	atomic {
		point();
		ok = credit[d];
		credit[d] = 0;
		point();
		all = all - ok;
		ok = 0;
		point();
		unlatch()
	};
	/* its page is rebuilt from the log, its lock released, its slot free */
	atomic {
		point();
		if
		:: item == d ->
			value = (g_commit[d] != 0 -> d : before[d]);
			d_step { g_first[d] = 0; g_last[d] = 0; first[d] = 0; last[d] = 0 };
			item = 0
		:: else
		fi;
		swept[d] = true;
		claim[d] = 0
	};
next:
	d = 0
	od;
died:
	dead[me] = true;
over:
	atomic { l = 0; e = 0; at = 0; h = 0; ok = 0; d = 0 }
}

init {
	byte i = 1;

	atomic {
		do
		:: i <= NW -> run Writer(i); i++
		:: i > NW && i <= N -> run Reader(i); i++
		:: i > N && i <= ALL -> run Sweeper(i); i++
		:: else -> i = 0; break
		od
	}
}

#endif
