/*
 * The places of Latchwork's log, for Spin: how threads obtain them, copy their
 * records concurrently, and move the log's end.
 *
 * Modelled: crates/log/src/group.rs (request words), append.rs (ask, serve,
 * note, chain, copy, publish), wait.rs (help), flight.rs (records in flight of
 * dead and stopped threads) and repair.rs (the latch of a dead thread).
 *
 *   append     store the record's size in the slot; put a request into a word
 *              of the group that is IDLE, or DONE before end; wait until the
 *              word is PLACED, or lead; note the slot; store COPYING by a
 *              compare-exchange, or ask again if another thread has filled the
 *              place; change the slot; copy the record, a unit a step; store
 *              DONE; wait until end is beyond it.  If the request was refused,
 *              store IDLE.
 *   lead       claim the group's leader, after a while also from another; latch;
 *              give places to the thread's own request and then to all others
 *              of the group, a word a step; store reserved; unlatch; release
 *              the claim.  After DONE: wait until no word of the batch is
 *              PLACED or COPYING, then until end is at the batch's start, and
 *              move it to its stop by a compare-exchange; raise the group's
 *              end, for which the others of the batch wait.
 *   latch      a word that names its holder.  A thread that finds a dead holder
 *              claims the holder's slot, takes the latch over, releases the
 *              claim, and computes reserved: after all words in flight, and
 *              end.  It fills the place that the holder was filling.
 *   land       (end_flight) with the claim on a dead thread's slot, and the
 *              latch: a request is removed; a place without a record is filled
 *              with a void, a unit a step, after the slot was restored from the
 *              note.  Then end moves over the DONE records at the front, and
 *              the groups' ends are raised.
 *   pass over  with the latch: a PLACED word whose place is at end becomes
 *              ownerless by a compare-exchange; the place is filled; DONE.
 *   wait       a thread that waits in an append lands a dead thread whose place
 *              it meets; moves end if the record at the front is DONE; passes
 *              over a late place.
 *   sweep      claim a dead slot; open the latch, and repair; remove its
 *              claims; land it; wait until end is at the earlier reserved; free
 *              its slot.
 *
 * A thread may die between any two steps, also while it repairs: at point()
 * below, DEATHS times in a run.  A sweeper may die if there are two.  STOPS
 * threads may be stopped until all others have returned: at halt(), which is
 * wherever a thread neither holds the latch nor copies.
 *
 * Not modelled.  Memory is sequentially consistent.  The buffer is never full
 * and no byte of it is reused, so there is no credit, and no limit to the
 * distance of a place from end (log.pml has the credit).  The slot has first,
 * last and the count of commits.  After a failed compare-exchange the code
 * loads again, so the load before it is not a separate step (a leader's load of
 * a request is one, because the leader stores the answer).  The same holds for
 * a word in flight and its size, because the code loads the word again.  A slot
 * is not reused after its sweep.  A thread waits without helping until some
 * thread has died or is stopped: otherwise the help would hide an omission of a
 * leader.  Threads that are not stopped are passed over PASSES times.
 *
 * Properties.
 *   (a) the bytes before end are whole records and voids, each at the place
 *       that was given to it; each place has one owner; there is neither a gap
 *       nor an overlap; end never moves back; no thread stores before end; a
 *       void is at a place of a dead thread, or at a passed-over place.
 *   (b) the record of an append that has returned is before end.  A dead thread
 *       has each record once, or a void, or nothing; it is before end when its
 *       sweep continues.  When no thread runs any more, each slot agrees with
 *       the log: first, last, count of commits.
 *   (c) when the latch is released, reserved is the stop of the last given
 *       place (ghost: given).
 *   (d) no living thread is stuck, and none waits for a stopped one: each
 *       reaches its end (an end state otherwise).  As an LTL formula: each does.
 *   (e) a request word is not used by another thread before its owner has
 *       finished with it (ghost: user).
 *
 * Compile-time numbers: NW writers, the last ALONE of them in the second group
 * and the others in the first; the first TWO append two records, of one unit
 * and of two, the others one of two; NSW sweepers; DEATHS; STOPS; PASSES; REQ
 * words of a group; REFUSALS requests that may be refused.  Mutants: see the
 * script "run".
 */

#ifndef NW
#define NW 2
#endif
#ifndef ALONE
#define ALONE 1
#endif
#ifndef TWO
#define TWO 0
#endif
#ifndef NSW
#define NSW 1
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef REQ
#define REQ 2
#endif
#ifndef REFUSALS
#define REFUSALS 0
#endif
#ifndef STOPS
#define STOPS 0
#endif
#ifndef PASSES
#define PASSES 0
#endif

#define ALL	(NW + NSW)		/* writers 1..NW, sweepers behind them */
#define STOP	(2 * NW + TWO + 2 * (PASSES + STOPS) + 1) /* where the log ends if no thread dies */
#define WORDS	(2 * REQ)
#define NONE	99
#define GROUP(t)	((t) > NW - ALONE)

/*
 * a request word: the place, or the size asked for; the slot; the state.
 * REFUSED is PLACED at 0.  COPYING is DONE at 0: the place is in the note.
 */
#define IDLE	0
#define ASKED	1
#define PLACED	2
#define DONE	3
#define WORD(v, t, s)	((v) * 32 + (t) * 4 + (s))
#define STATE(w)	((w) % 4)
#define SLOT(w)		((w) / 4 % 8)
#define VALUE(w)	((w) / 32)
#define SIZE(n)		((n) == 1 -> 2 : 1)	/* of the record, n of the thread's being left */

/* a unit of the buffer: whose record, which of its records, size, which unit */
#define VOID	7
#define UNIT(t, n, s, i)	((t) * 32 + (n) * 8 + (s) * 2 + (i))
#define LENGTH(u)	((u) / 2 % 4)

/* shared: the log */
byte latch;				/* zero, or its holder */
byte end = 1, reserved = 1;
short word[WORDS];
byte leader[2], gend[2];
byte buffer[STOP + 1];
byte flight[ALL + 1];
byte filled;				/* the size of a place that is passed over */
byte first[ALL + 1], last[ALL + 1], commits[ALL + 1];
byte note_first[ALL + 1], note_last[ALL + 1], note_commits[ALL + 1], note_lsn[ALL + 1];
/* the region */
bool dead[ALL + 1], swept[ALL + 1];
byte claim[ALL + 1];			/* the thread that repairs for a dead slot */
byte deaths = DEATHS, refusals = REFUSALS, stops = STOPS, passes = PASSES;
byte halted;				/* the thread that is stopped */
byte ndone;
/* ghosts */
byte given = 1;				/* the stop of the last place */
byte owner[STOP + 1];			/* of the place that begins here */
byte user[WORDS];
/* scratch, never part of a state */
hidden byte gi, gs, go, gt, gf, gl, gc;

#if defined(FINE) && !defined(COARSE)
#define MERGED				/* each step on its own */
#else
#define MERGED	atomic
#endif

#if NSW > 1
#define MORTAL	ALL
#else
#define MORTAL	NW
#endif

/* the thread lives on, or dies here */
inline point()
{
	if
	:: true
	:: atomic { deaths > 0 && me <= MORTAL -> deaths--; dead[me] = true; goto died }
	fi
}

/* the thread continues, or is stopped here until all others have returned */
inline halt()
{
#if STOPS > 0
	if
	:: true
	:: atomic { stops > 0 -> stops--; halted = me };
		atomic { ndone >= NW - 1 -> halted = 0 }
	fi
#else
	skip
#endif
}

#define RESTS(d)	(d > ALL || !dead[(d) % (ALL + 1)] || swept[(d) % (ALL + 1)])
#define ALL_REST	(RESTS(1) && RESTS(2) && RESTS(3) && RESTS(4) && RESTS(5))
#define CLAIMABLE(d)	(dead[d] && !swept[d] && (claim[d] == 0 || dead[claim[d]]))

/* possible work of a waiting thread, at one word */
#define FREE(i)		(STATE(word[i]) == IDLE || \
			(STATE(word[i]) == DONE && VALUE(word[i]) != 0 && VALUE(word[i]) < end))
#define LOST(i)		(!FREE(i) && CLAIMABLE(SLOT(word[i])))
#define NAP		(deaths < DEATHS || stops < STOPS)
#define LATE(i)		(STATE(word[i]) == PLACED && VALUE(word[i]) == end && SLOT(word[i]) != 0 && \
			(passes > 0 || SLOT(word[i]) == halted))
#define AT_FRONT(i)	(STATE(word[i]) == DONE && VALUE(word[i]) == end)
#if REQ == 1
#define ANY(what)	(what(0) || what(1))
#elif REQ == 2
#define ANY(what)	(what(0) || what(1) || what(2) || what(3))
#else
#define ANY(what)	(what(0) || what(1) || what(2) || what(3) || what(4) || what(5))
#endif
#ifdef NOT_HELPED
#define FRONT	false
#else
#define FRONT	ANY(AT_FRONT)
#endif
#if PASSES + STOPS > 0
#define PASS	ANY(LATE)
#else
#define PASS	false
#endif
#define WORK(more)	(NAP && (ANY(LOST) || FRONT || PASS || (more)))

/* (c) */
inline unlatch()
{
	d_step { assert(reserved == given); latch = 0 }
}

/* end moves to `to`: (a) */
inline move(to)
{
	d_step {
		assert(to >= end);
		gi = end;
		do
		:: gi < to ->
			gs = LENGTH(buffer[gi]);
			go = buffer[gi] / 32;
			assert(owner[gi] != 0 && gs != 0);
			assert(buffer[gi] % 2 == 0);
			assert(go == owner[gi] || (go == VOID && dead[owner[gi]]));
			assert(gs == 1 || buffer[gi + 1] == buffer[gi] + 1);
			gi = gi + gs;
		:: else -> break
		od;
		assert(gi == to);
		end = to;
		gi = 0; gs = 0; go = 0
	}
}

/* stores a unit of the buffer: (a) */
inline put(l, t, n, s, i)
{
	assert(l + i >= end);
	buffer[l + i] = UNIT(t, n, s, i)
}

inline raise(g, to)
{
	d_step {
		if
		:: gend[g] < to -> gend[g] = to
		:: else
		fi
	}
}

/* fills the place x of the word i */
inline fill(size)
{
#ifdef VOID_AFTER_DONE
	word[i] = WORD(x, 0, DONE);
	point();
#endif
#ifndef NO_VOID
#ifdef VOID_SHORT
	put(x, VOID, 0, 1, 0);
#else
	put(x, VOID, 0, size, 0);
	point();
	if
	:: size == 2 -> put(x, VOID, 0, 2, 1)
	:: else
	fi;
#endif
	point();
#endif
	d_step { word[i] = WORD(x, 0, DONE); user[i] = 0 };
	point()
}

/* repair_append, with the latch.  Leaves x and i zero. */
inline repair_append()
{
#ifndef RESERVED_STAYS
	MERGED {
		atomic {
			i = 0; x = 0;
#ifdef END_LOADED_FIRST
			x = end;
#endif
			point()
		};
		do
		:: i < WORDS ->
#ifdef FLIGHT_ONCE
			w = word[i];
#endif
			d_step {
#ifndef FLIGHT_ONCE
				w = word[i];
#endif
				if
				:: STATE(w) == PLACED && VALUE(w) != 0 && SLOT(w) != 0 -> gs = VALUE(w) + flight[SLOT(w)]
				:: STATE(w) == PLACED && VALUE(w) != 0 && SLOT(w) == 0 -> gs = VALUE(w) + filled
				:: STATE(w) == DONE && VALUE(w) != 0 -> gs = VALUE(w) + LENGTH(buffer[VALUE(w)])
				:: STATE(w) == DONE && VALUE(w) == 0 -> gs = note_lsn[SLOT(w)] + flight[SLOT(w)]
				:: else -> gs = 0
				fi;
				if :: gs > x -> x = gs :: else fi;
				w = 0; gs = 0; i++
			}
		:: else -> break
		od;
#ifndef END_LOADED_FIRST
		if :: end > x -> x = end :: else fi;
#endif
		atomic { reserved = x; x = 0; i = 0; point() };
#if PASSES + STOPS > 0 && !defined(NOT_FILLED_AGAIN)
		atomic {
			do
			:: i < WORDS ->
				if
				:: STATE(word[i]) == PLACED && SLOT(word[i]) == 0 && VALUE(word[i]) != 0 ->
					x = VALUE(word[i]);
					fill(filled)
				:: else
				fi;
				i++
			:: else -> break
			od;
			x = 0; i = 0
		}
#endif
	}
#else
	skip
#endif
}

inline lock_latch()
{
	do
	:: atomic { latch == 0 -> latch = me; point(); break }
	:: atomic { latch != 0 && CLAIMABLE(latch) -> h = latch; claim[h] = me; point() };
		if
		:: atomic { latch == h -> latch = me; point(); claim[h] = 0; h = 0 };
			repair_append();
			break
		:: atomic { latch != h -> claim[h] = 0; h = 0 }
		fi
	od
}

/* opens the latch of d, a dead thread whose slot is claimed, if any */
inline open_latch()
{
	if
	:: atomic { d != 0 && latch == d -> latch = me };
		point();
		repair_append();
		unlatch();
		point()
	:: d == 0 || latch != d
	fi
}

inline take_note(t, l)
{
	note_first[t] = first[t];
	point();
	note_last[t] = last[t];
	point();
	note_commits[t] = commits[t];
	point();
	note_lsn[t] = l;
	point()
}

/* restores the slot of d, a dead thread, whose place is x */
inline restore()
{
#ifdef NOTE_ALWAYS
	take_note(d, x);
#else
#ifndef NOTE_NEVER
	if
	:: note_lsn[d] != x -> take_note(d, x)
	:: else
	fi;
#endif
#endif
#ifndef SLOT_STAYS
	first[d] = note_first[d];
	point();
	last[d] = note_last[d];
	point();
#ifndef COMMIT_STAYS
	commits[d] = note_commits[d];
#endif
#endif
	point()
}

/* The latch is held, and the slot of d, if any, is claimed. */
inline land()
{
	MERGED {
	i = 0;
	do
	:: i < WORDS ->
#ifdef LAND_UNLATCHED
		w = word[i];
#endif
		atomic {
#ifndef LAND_UNLATCHED
			w = word[i];
#endif
			if
			:: d != 0 && SLOT(w) == d && STATE(w) >= PLACED && (STATE(w) == DONE) == (VALUE(w) == 0) ->
				x = (VALUE(w) != 0 -> VALUE(w) : note_lsn[d]);
				restore();
				fill(flight[d]);
				x = 0
			:: d != 0 && SLOT(w) == d && (STATE(w) == ASKED || (STATE(w) == PLACED && VALUE(w) == 0)) ->
#ifndef ASKED_STAYS
				d_step { word[i] = 0; user[i] = 0 }
#else
				skip
#endif
			:: else
			fi;
			w = 0;
			i++;
			point()
		}
	:: else -> break
	od
	};
	move_end()
}

/* Moves end over whole records at the front. */
inline move_end()
{
	/* x: the words that are DONE */
	MERGED {
		atomic { i = 0; x = 0 };
		do
		:: i < WORDS ->
			atomic {
				if
				:: STATE(word[i]) == DONE && VALUE(word[i]) >= end -> x = x | (1 << i)
				:: else
				fi;
				i++
			}
		:: else -> break
		od
	};
	do
	:: atomic {
		d_step {
			i = 0;
			do
			:: i < WORDS && !((x >> i & 1) && STATE(word[i]) == DONE && VALUE(word[i]) == end) -> i++
			:: else -> break
			od
		};
		if
		:: i < WORDS ->
			assert(LENGTH(buffer[end]) != 0);
			move(end + LENGTH(buffer[end]));
			point()
		:: else -> x = end; break
		fi
	   }
	od;
	MERGED {
	atomic {
		i = 0;
#ifndef END_NOT_RAISED
		raise(0, x);
#endif
		point()
	};
	atomic {
#ifndef END_NOT_RAISED
		raise(1, x);
#endif
		point()
	};
	atomic { i = 0; x = 0 }
	}
}

/* The latch is held. */
inline pass_over()
{
#if PASSES + STOPS > 0
	if
	:: atomic {
			PASS ->
			i = 0;
			do
			:: !LATE(i) -> i++
			:: else -> break
			od;
			x = VALUE(word[i]);
			filled = flight[SLOT(word[i])];
			point()
	   };
		if
		:: atomic {
			LATE(i) && VALUE(word[i]) == x ->
			passes = (SLOT(word[i]) == halted -> passes : passes - 1);
			d_step { owner[x] = VOID; word[i] = WORD(x, 0, PLACED) };
			point()
		   };
			fill(filled);
			x = 0;
			move_end()
		:: else -> i = 0; x = 0
		fi
	:: else
	fi
#else
	skip
#endif
}

/* end_dead_flights, and other help */
inline help(more)
{
	if
	:: ANY(LOST) || FRONT || PASS || more ->
		atomic {
			if
			:: ANY(LOST) ->
				i = 0;
				do
				:: !LOST(i) -> i++
				:: LOST(i) -> d = SLOT(word[i]); break
				od;
				i = 0;
				claim[d] = me;
				point()
			:: FRONT || PASS || more
			:: else
			fi
		};
		MERGED {
			open_latch();
#ifndef LAND_UNLATCHED
			lock_latch();
#endif
			land();
			pass_over();
#ifndef LAND_UNLATCHED
			unlatch();
#endif
			atomic { point(); claim[d] = 0; d = 0 }
		}
	:: else
	fi
}

/* gives the place bt to the request in word i */
inline give()
{
	d_step {
		assert(bt == given && owner[bt] == 0);
		owner[bt] = SLOT(w);
		word[i] = WORD(bt, SLOT(w), PLACED);
		if
		:: i != own -> batch[i % REQ] = true
		:: else -> l = bt
		fi;
		given = bt + VALUE(w);
		bt = bt + VALUE(w);
		w = 0
	}
}

/* Leaves ok: whether this thread leads a batch. */
inline serve()
{
	MERGED {
		lock_latch();
		atomic { bf = reserved; bt = reserved; i = own };
		if
		:: STATE(word[own]) != ASKED || SLOT(word[own]) != me
		:: else ->
			do
			:: d_step {
				if
				:: STATE(word[i]) == ASKED -> w = word[i]
				:: else
				fi
			   };
			   atomic {
				if
				:: w != 0 ->
					if
					:: give()
					:: refusals > 0 -> refusals--; word[i] = WORD(0, SLOT(w), PLACED); w = 0
					fi;
					point()
				:: else
				fi;
				i = (i % REQ == REQ - 1 -> i + 1 - REQ : i + 1);
				if
				:: i == own -> break
				:: else
				fi
			   }
			od;
#ifdef UNLATCH_FIRST
			latch = 0;
			point();
#endif
			atomic { reserved = bt; ok = true; point() }
		fi;
		atomic {
			i = 0;
#ifndef UNLATCH_FIRST
			unlatch();
#else
			if :: latch == me -> latch = 0 :: else fi;
#endif
			point()
		}
	}
}

inline use(i, s)
{
	own = i;
	d_step { assert(user[own] == 0); user[own] = me; word[own] = WORD(s, me, ASKED) };
	point()
}

#define WORD_OF(k)	(GROUP(me) * REQ + k)

/* Leaves own at NONE if another thread has filled the place. */
inline change_and_copy()
{
	atomic { ok = false };
	if
	:: l == 0
	:: else ->
		halt();
		atomic { take_note(me, l) };
		halt();
		atomic {
			if
			:: word[own] == WORD(l, me, PLACED) -> word[own] = WORD(0, me, DONE); point()
			:: else ->
#ifndef OWN_IS_DONE
				if
				:: bt != 0 -> batch[own % REQ] = true
				:: else
				fi;
#endif
				l = 0;
				own = NONE
			fi
		};
		atomic {
			if
			:: own == NONE
			:: else ->
				if
				:: n == 1 ->
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
#ifdef DONE_FIRST
				word[own] = WORD(l, me, DONE);
#endif
				point();
				put(l, me, n, SIZE(n), 0);
				point();
				if
				:: SIZE(n) == 2 -> put(l, me, n, 2, 1); point()
				:: else
				fi;
				d_step { word[own] = WORD(l, me, DONE); user[own] = 0 };
				point()
			fi
		}
	fi
}

#ifdef PASSED_IS_DONE
#define IN_WORK(w)	((STATE(w) == PLACED && VALUE(w) != 0 && SLOT(w) != 0) || \
			(STATE(w) == DONE && VALUE(w) == 0))
#else
#define IN_WORK(w)	((STATE(w) == PLACED && VALUE(w) != 0) || (STATE(w) == DONE && VALUE(w) == 0))
#endif
#define CHANGED(k)	(!batch[k] || !IN_WORK(word[WORD_OF(k)]))
#if REQ == 1
#define BATCH_IS_DONE	true
#define BATCH_HAS_OTHERS	false
#define FORGET_BATCH	d_step { batch[0] = false }
#elif REQ == 2
#define BATCH_IS_DONE	(CHANGED(0) && CHANGED(1))
#define BATCH_HAS_OTHERS	(batch[0] || batch[1])
#define FORGET_BATCH	d_step { batch[0] = false; batch[1] = false }
#else
#define BATCH_IS_DONE	(CHANGED(0) && CHANGED(1) && CHANGED(2))
#define BATCH_HAS_OTHERS	(batch[0] || batch[1] || batch[2])
#define FORGET_BATCH	d_step { batch[0] = false; batch[1] = false; batch[2] = false }
#endif

#define BEHIND	(at == FOLLOWS && gend[GROUP(me)] < end)
#ifdef CLAIM_RESPECTED
#define MAY_LEAD	(leader[GROUP(me)] == 0)
#else
#define MAY_LEAD	(leader[GROUP(me)] == 0 || stops < STOPS || dead[leader[GROUP(me)]])
#endif

/* where a thread is in an append */
#define ASKS	0			/* for a free word */
#define WAITS	1			/* for a place, or to lead */
#define FOLLOWS	2			/* its record is DONE */
#define LEADS	3			/* the same, and it leads a batch */
#define MOVES	4			/* all of its batch are DONE */

/* ask: while the word is free no thread looks at the size */
#ifdef USED_EARLY
#define USABLE(k)	(FREE(k) || STATE(word[k]) == DONE && VALUE(word[k]) != 0)
#else
#define USABLE(k)	FREE(k)
#endif
#ifdef ASK_STORES
#define ASK(k)	at == ASKS && USABLE(WORD_OF(k)) -> \
		atomic { flight[me] = SIZE(n); use(WORD_OF(k), SIZE(n)); at = WAITS }
#else
#define ASK(k)	atomic { \
			at == ASKS && USABLE(WORD_OF(k)) -> \
			flight[me] = SIZE(n); \
			point(); \
			use(WORD_OF(k), SIZE(n)); \
			at = WAITS \
		}
#endif

proctype Writer(byte me)
{
	byte n = 1, at = ASKS, l = 0, own = 0, bf = 0, bt = 0, i = 0, x = 0, h = 0, d = 0;
	short w = 0;
	bool ok = false, batch[REQ];

	if
	:: me <= TWO -> n = 2
	:: else
	fi;
	do
	:: ASK(0)
#if REQ > 1
	:: ASK(1)
#endif
#if REQ > 2
	:: ASK(2)
#endif
	/* place */
	:: atomic {
		at == WAITS && MAY_LEAD && STATE(word[own]) == ASKED && SLOT(word[own]) == me ->
		leader[GROUP(me)] = me;
		point()
	   };
		halt();
		serve();
		atomic {
			if
			:: leader[GROUP(me)] == me -> leader[GROUP(me)] = 0
			:: else
			fi;
			if
			:: ok -> at = LEADS; point(); goto placed
			:: else -> bf = 0; bt = 0; point()
			fi
		}
	:: atomic { at == WAITS && SLOT(word[own]) != me -> at = ASKS; own = 0 }
	:: atomic {
		at == WAITS && STATE(word[own]) == PLACED && SLOT(word[own]) == me ->
		l = VALUE(word[own]);
		at = FOLLOWS
	   };
placed:
		change_and_copy();
		if
		:: atomic { own == NONE && at == FOLLOWS -> own = 0; at = ASKS }
		:: else
		fi
#if STOPS > 0
	:: atomic { stops > 0 && at >= FOLLOWS -> stops--; halted = me };
		atomic { ndone >= NW - 1 -> halted = 0 }
#endif
	/* publish */
	:: atomic { at == FOLLOWS && (l == 0 || gend[GROUP(me)] >= l + SIZE(n)) -> goto published }
#ifdef BATCH_NOT_AWAITED
	:: at == LEADS -> at = MOVES
#else
	:: at == LEADS && BATCH_IS_DONE -> at = MOVES
#endif
	:: atomic { at == MOVES && end >= bt -> goto moved }
#ifdef END_STORED
	:: at == MOVES && end >= bf && end < bt -> move(bt); goto moved
#else
#ifdef BATCH_BEFORE_NOT_AWAITED
	:: atomic { at == MOVES && end < bt -> move(bt) };
#else
	:: atomic { at == MOVES && end >= bf && end < bt -> move(bt) };
#endif
#endif
moved:
		halt();
		atomic {
			point();
			if
			:: BATCH_HAS_OTHERS -> raise(GROUP(me), bt)
			:: else
			fi;
			bf = 0; bt = 0;
			FORGET_BATCH;
			point()
		};
published:
		atomic {
			/* (b) */
			assert(l == 0 || (l + SIZE(n) <= end && buffer[l] == UNIT(me, n, SIZE(n), 0)));
			if
			:: own != NONE && l == 0 -> d_step { user[own] = 0; word[own] = WORD(0, me, IDLE) }
			:: else
			fi;
			if :: l != 0 -> n-- :: else fi;
			l = 0; own = 0; at = ASKS;
			point();
			if
			:: n == 0 -> break
			:: else
			fi
		}
	:: WORK(BEHIND) -> help(BEHIND)
	od;
	goto over;
died:
over:
	atomic {
		n = 0; at = 0; l = 0; own = 0; bf = 0; bt = 0; i = 0; x = 0; h = 0; d = 0; w = 0; ok = false;
		FORGET_BATCH;
		ndone++
	}
}

/* sweeps what is dead, until all threads have ended and are swept */
proctype Sweeper(byte me)
{
	byte i = 0, x = 0, h = 0, d = 0, e = 0, to = 0;
	short w = 0;

	do
	:: atomic { CLAIMABLE(1) -> d = 1; claim[d] = me } -> goto sweep
#if ALL > 1
	:: atomic { CLAIMABLE(2) -> d = 2; claim[d] = me } -> goto sweep
#endif
#if ALL > 2
	:: atomic { CLAIMABLE(3) -> d = 3; claim[d] = me } -> goto sweep
#endif
#if ALL > 3
	:: atomic { CLAIMABLE(4) -> d = 4; claim[d] = me } -> goto sweep
#endif
#if ALL > 4
	:: atomic { CLAIMABLE(5) -> d = 5; claim[d] = me } -> goto sweep
#endif
	:: atomic { ndone == NW && ALL_REST -> goto over };
sweep:
		MERGED {
			point();
			open_latch();
			atomic {
				if :: leader[0] == d -> leader[0] = 0 :: else fi;
				if :: leader[1] == d -> leader[1] = 0 :: else fi;
				point()
			};
#ifndef LAND_UNLATCHED
			lock_latch();
#endif
#ifdef SWEEP_WAITS_FOR_OWN
#define OF_DEAD(i)	(STATE(word[i]) >= PLACED && SLOT(word[i]) == d)
			if :: ANY(OF_DEAD) -> to = reserved :: else fi;
#endif
			land();
			atomic {
#ifndef SWEEP_WAITS_FOR_OWN
				to = reserved;
#endif
				e = d;
				d = 0;
#ifndef LAND_UNLATCHED
				unlatch();
#endif
				point()
			}
		};
#ifndef SWEEP_DOES_NOT_WAIT
		do
		:: end >= to -> break
		:: WORK(false) -> help(false)
		od;
#endif
		d = e;
		d_step {
			/* (b): the layers above release its locks now */
			gi = end;
			do
			:: gi < STOP -> assert(owner[gi] != d); gi++
			:: else -> break
			od;
			gi = 0;
			swept[d] = true; claim[d] = 0; d = 0; e = 0; to = 0
		}
	od;
died:
over:
	atomic { i = 0; x = 0; h = 0; d = 0; e = 0; to = 0; w = 0 }
}

#ifdef LTL
ltl all_return { <> (ndone == NW) }
#endif

/* (b) and the rest, when all is at rest */
proctype Judge()
{
	ndone == NW && (NSW == 0 || ALL_REST);
	d_step {
		gt = 1;
		do
		:: gt <= NW ->
			gi = 1; gf = 0; gl = 0; gc = 0;
			do
			:: gi < end ->
				if
				:: buffer[gi] / 32 != gt
				:: buffer[gi] / 32 == gt && buffer[gi] / 8 % 4 == 1 -> gc++; gf = 0; gl = 0
				:: else -> gf = (gf == 0 -> gi : gf); gl = gi
				fi;
				gi = gi + LENGTH(buffer[gi])
			:: else -> break
			od;
			assert(gc == 1 || (dead[gt] && gc == 0));
			assert((dead[gt] && !swept[gt]) ||
				(first[gt] == gf && last[gt] == gl && commits[gt] == gc));
			gt++
		:: else -> break
		od;
#if NSW > 0
		assert(latch == 0 && (leader[0] == 0 || dead[leader[0]]) && (leader[1] == 0 || dead[leader[1]]));
		assert(end == given);
		gi = 0;
		do
		:: gi < WORDS ->
			assert(FREE(gi));
			gi++
		:: else -> break
		od;
#endif
		gi = 0; gt = 0; gf = 0; gl = 0; gc = 0
	}
}

init {
	byte i = 1;

	atomic {
		do
		:: i <= NW -> run Writer(i); i++
		:: i > NW && i <= ALL -> run Sweeper(i); i++
		:: else -> i = 0; break
		od;
		run Judge()
	}
}
